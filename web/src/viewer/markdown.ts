/** Markdown with tables, task lists, math and diagrams. */
import "katex/dist/katex.min.css";
import "./markdown.css";
import DOMPurify from "dompurify";
import { Marked, type TokenizerAndRendererExtension } from "marked";
import { colourCode } from "./code";
import { type Context, element, type Viewer } from "./context";
import { decodeText } from "./text";

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function math(
  name: string,
  level: "block" | "inline",
  opening: RegExp,
  whole: RegExp,
): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => source.search(opening),
    tokenizer: (source) => {
      const match = whole.exec(source);
      return match ? { type: name, raw: match[0], text: (match[1] ?? match[2] ?? "").trim() } : undefined;
    },
    renderer: (token) => {
      const tag = level === "block" ? "div" : "span";
      return `<${tag} class="math-${level}">${escapeHtml(String(token.text))}</${tag}>`;
    },
  };
}

const marked = new Marked({
  gfm: true,
  extensions: [
    math("mathBlock", "block", /\$\$|\\\[/, /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])(?:\n|$)/),
    math(
      "mathInline",
      "inline",
      /\$|\\\(/,
      /^(?:\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|\\\(([\s\S]+?)\\\))/,
    ),
  ],
});

/** Safe HTML of a piece of Markdown; `finishMarkdown` then fills in math, code and diagrams. */
export function markdownToElement(text: string): HTMLElement {
  const html = marked.parse(text, { async: false });
  return sanitise(html);
}

export function sanitise(html: string): HTMLElement {
  const host = element("div", { class: "prose" });
  host.append(
    DOMPurify.sanitize(html, {
      RETURN_DOM_FRAGMENT: true,
      USE_PROFILES: { html: true, svg: true, mathMl: true },
      FORBID_TAGS: ["style", "form", "iframe", "dialog", "map", "area"],
      FORBID_ATTR: ["srcset", "usemap"],
    }),
  );
  return host;
}

export async function finishMarkdown(
  host: HTMLElement,
  base: string | null,
  context: Context,
): Promise<void> {
  nameHeadings(host);
  for (const picture of host.querySelectorAll("img")) placePicture(picture, base);
  for (const box of host.querySelectorAll("input")) box.disabled = true;
  await Promise.all([drawMath(host), colourBlocks(host)]);
  await drawDiagrams(host, context.dark());
}

function nameHeadings(host: HTMLElement): void {
  const seen = new Map<string, number>();
  for (const heading of host.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const slug = (heading.textContent ?? "")
      .trim()
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, "")
      .replace(/\s/g, "-");
    const times = seen.get(slug) ?? 0;
    seen.set(slug, times + 1);
    heading.id = times ? `${slug}-${times}` : slug;
  }
}

/** Pictures beside the file come through the capability address; ones of other sites are not loaded at all. */
function placePicture(picture: HTMLImageElement, base: string | null): void {
  const source = picture.getAttribute("src") ?? "";
  if (/^(data|blob):/i.test(source)) return;
  const outside = /^([a-z][a-z\d+.-]*:|\/)/i.test(source);
  if (outside || !base) {
    const shown = picture.alt || source.slice(0, 80);
    picture.replaceWith(element("span", { class: "left-out", text: `Picture not loaded: ${shown}` }));
    return;
  }
  picture.src = new URL(source, base).href;
  picture.loading = "lazy";
}

async function drawMath(host: HTMLElement): Promise<void> {
  const found = host.querySelectorAll<HTMLElement>(".math-block, .math-inline");
  if (!found.length) return;
  const { default: katex } = await import("katex");
  for (const place of found) {
    const displayMode = place.classList.contains("math-block");
    katex.render(place.textContent ?? "", place, {
      displayMode,
      throwOnError: false,
      trust: false,
      maxExpand: 500,
      maxSize: 50,
    });
  }
}

async function colourBlocks(host: HTMLElement): Promise<void> {
  const blocks = [...host.querySelectorAll<HTMLElement>("pre > code[class*='language-']")];
  await Promise.all(
    blocks.map(async (block) => {
      const language = /language-([\w+#-]+)/.exec(block.className)?.[1] ?? "";
      if (language !== "mermaid") await colourCode(block, language);
    }),
  );
}

async function drawDiagrams(host: HTMLElement, dark: boolean): Promise<void> {
  const blocks = [...host.querySelectorAll<HTMLElement>("pre > code.language-mermaid")];
  if (!blocks.length) return;
  const { default: mermaid } = await import("mermaid");
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    theme: dark ? "dark" : "default",
    layout: "dagre", // its default is ELK, which is left out of the build
    maxTextSize: 50_000,
  });
  for (const [i, block] of blocks.entries()) {
    try {
      const { svg } = await mermaid.render(`diagram-${i}`, block.textContent ?? "");
      const place = element("div", { class: "diagram" });
      place.innerHTML = svg;
      block.parentElement?.replaceWith(place);
    } catch (error) {
      const why = error instanceof Error ? error.message.split("\n")[0] : "";
      block.parentElement?.before(
        element("p", { class: "left-out", text: `This diagram has an error: ${why}` }),
      );
    }
  }
}

export const showMarkdown: Viewer = async (host, file, context) => {
  const made = markdownToElement(decodeText(file.data));
  made.classList.add("page");
  host.append(made);
  context.visible();
  await finishMarkdown(made, file.base, context);
};

/** A file that is one diagram, drawn as a block of Markdown is. */
export const showDiagram: Viewer = async (host, file, context) => {
  const source = element("code", { class: "language-mermaid", text: decodeText(file.data) });
  const made = element("div", { class: "prose page" }, element("pre", {}, source));
  host.append(made);
  context.visible();
  await drawDiagrams(made, context.dark());
};
