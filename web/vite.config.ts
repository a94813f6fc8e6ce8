import { copyFileSync, mkdirSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const here = import.meta.dirname;
// Elsewhere for the test that compares a fresh build with the one that is kept.
const out = resolve(here, process.env.CUBICLE_STATIC ?? "../src/cubicle/http_api/static");
const pages = ["terminal", "live", "workspace", "viewer", "login", "admin"];

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

export default defineConfig({
  root: here,
  // Relative addresses: the pages work under any path prefix.
  base: "./",
  plugins: [pdfData(), onlyWoff2(), withoutElk()],
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
