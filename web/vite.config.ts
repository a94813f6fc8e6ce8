import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { build, type Plugin } from "vite";
import { defineConfig } from "vitest/config";

const here = import.meta.dirname;
// Elsewhere for the test that compares a fresh build with the one that is kept.
const out = resolve(here, process.env.CUBICLE_STATIC ?? "../src/cubicle/http_api/static");
const pages = ["home", "terminal", "live", "workspace", "viewer", "login", "admin", "timeline"];

/** What pdf.js reads at run time, by name: character maps, fonts that a PDF may leave out, image decoders. */
const PDF_DATA: [folder: string, ending: RegExp][] = [
  ["cmaps", /\.bcmap$/],
  ["standard_fonts", /\.(pfb|ttf)$/],
  ["wasm", /^(jbig2|openjpeg|qcms_bg)\.wasm$/],
];

function pdfData(): Plugin {
  return {
    name: "pdf-data",
    apply: "build",
    writeBundle() {
      for (const [folder, ending] of PDF_DATA) {
        const from = join(here, "node_modules/pdfjs-dist", folder);
        const to = join(out, "pdf", folder);
        mkdirSync(to, { recursive: true });
        for (const name of readdirSync(from))
          if (ending.test(name)) copyFileSync(join(from, name), join(to, name));
      }
    },
  };
}

/** Every browser that runs these pages takes woff2: the two older copies of each font of KaTeX stay out. */
function onlyWoff2(): Plugin {
  return {
    name: "only-woff2",
    enforce: "pre",
    transform(code, id) {
      return id.includes("katex.min.css")
        ? code.replace(/,url\([^)]*\.(woff|ttf)\) format\("[a-z]+"\)/g, "")
        : null;
    },
  };
}

/** One layout engine of mermaid is larger than all the rest of it; diagrams that name it say that it is left out. */
function withoutElk(): Plugin {
  return {
    name: "without-elk",
    enforce: "pre",
    load(id) {
      return /mermaid\/dist\/.*\/elk-[\w]+\.mjs$/.test(id)
        ? 'export function render() { throw new Error("the ELK layout is not included"); }'
        : null;
    },
  };
}

const sha256 = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

/** A script and a style as one text each, which can stand in a page. */
async function bundled(input: string): Promise<{ script: string; style: string }> {
  const made = await build({
    configFile: false,
    root: here,
    logLevel: "warn",
    build: {
      write: false,
      target: "es2023",
      cssCodeSplit: false,
      modulePreload: false,
      rolldownOptions: { input: join(here, input), output: { format: "iife", codeSplitting: false } },
    },
  });
  const files = [made].flat().flatMap((one) => ("output" in one ? one.output : []));
  const script = files.flatMap((one) => (one.type === "chunk" ? one.code : [])).join("\n");
  const style = files
    .flatMap((one) => (one.type === "asset" && one.fileName.endsWith(".css") ? one.source.toString() : []))
    .join("\n");
  if (/<\/script|<!--/i.test(script) || /<\/style/i.test(style)) throw new Error("it would end its element");
  return { script, style };
}

/** replay.html: one file with its script, its style and a place for the lines of a journal, which runs from a disk. */
function replayFile(): Plugin {
  return {
    name: "replay-file",
    apply: "build",
    async closeBundle() {
      const { script, style } = await bundled("src/replay/main.tsx");
      const policy = `default-src 'none'; script-src ${sha256(script)}; style-src ${sha256(style)}; img-src data:; base-uri 'none'; form-action 'none'`;
      const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Replay of a chat</title>
<style>${style}</style>
</head>
<body>
<div id="app"><main class="empty"><p>This page needs JavaScript, and runs without a network.</p></main></div>
<script type="application/json" id="journal">
<!--journal-->
</script>
<script>${script}</script>
</body>
</html>
`;
      writeFileSync(join(out, "replay.html"), page);
    },
  };
}

/** card.html: the page of all cards in chat clients, with its script and its style. It is sent through MCP. */
function cardFile(): Plugin {
  return {
    name: "card-file",
    apply: "build",
    async closeBundle() {
      const { script, style } = await bundled("src/card/main.ts");
      const page = `<!doctype html>
<html lang="en" data-view="<!--view-->">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Cubicle</title>
<style>${style}</style>
</head>
<body>
<script type="module">${script}</script>
</body>
</html>
`;
      writeFileSync(join(out, "card.html"), page);
    },
  };
}

export default defineConfig({
  root: here,
  // Relative addresses: the pages work under any path prefix.
  base: "./",
  plugins: [pdfData(), onlyWoff2(), withoutElk(), replayFile(), cardFile()],
  resolve: { dedupe: ["katex"] },
  build: {
    outDir: out,
    emptyOutDir: true,
    manifest: "manifest.json",
    sourcemap: false,
    target: "es2023",
    chunkSizeWarningLimit: 3000,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rolldownOptions: { input: Object.fromEntries(pages.map((p) => [p, join(here, "src", p, "main.tsx")])) },
  },
  test: { include: ["tests/**/*.test.ts"] },
});
