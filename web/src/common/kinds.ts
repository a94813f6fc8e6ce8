/** Which viewer shows a file: by its name, and for unknown names by its first bytes. */

export type Kind =
  | "text"
  | "markdown"
  | "diagram"
  | "html"
  | "image"
  | "svg"
  | "pdf"
  | "table"
  | "sheet"
  | "docx"
  | "slides"
  | "office"
  | "audio"
  | "video"
  | "notebook"
  | "archive"
  | "hex";

const BY_ENDING: [Kind, string][] = [
  ["markdown", "md markdown mdown mkd"],
  ["diagram", "mmd mermaid"],
  ["html", "html htm xhtml"],
  ["image", "png jpg jpeg gif webp avif bmp ico apng"],
  ["svg", "svg"],
  ["pdf", "pdf"],
  ["table", "csv tsv"],
  ["sheet", "xlsx xlsm xls xlsb ods fods numbers"],
  ["docx", "docx docm"],
  ["slides", "pptx pptm"],
  ["office", "doc odt rtf ppt odp odg"],
  ["audio", "mp3 wav ogg oga opus flac m4a aac weba"],
  ["video", "mp4 webm ogv mov m4v"],
  ["notebook", "ipynb"],
  ["archive", "zip jar whl tar tgz gz epub apk vsix"],
  [
    "text",
    "txt log json jsonl ndjson yaml yml toml ini cfg conf env xml py pyi js mjs cjs ts tsx jsx css scss less sql sh bash zsh fish rb go rs c h cc cpp hpp cs java kt swift php pl lua r jl hs ml ex exs erl clj scala dart vue svelte tex bib rst diff patch mk cmake gradle properties tf proto graphql srt vtt",
  ],
];

const KINDS = new Map(
  BY_ENDING.flatMap(([kind, endings]) => endings.split(" ").map((e) => [e, kind] as const)),
);
const PLAIN_NAMES =
  /^(makefile|dockerfile|readme|license|licence|changelog|authors|notice|procfile|gemfile|rakefile|\.[\w.-]*(rc|ignore|config|env|profile|attributes))$/i;

export function ending(name: string): string {
  const dot = name.lastIndexOf(".");
  return dot > 0 ? name.slice(dot + 1).toLowerCase() : "";
}

/** Null: the name does not tell. */
export function kindOfName(name: string): Kind | null {
  return KINDS.get(ending(name)) ?? (PLAIN_NAMES.test(name) ? "text" : null);
}

const SNIFFED = 16 * 1024;

export function looksLikeText(data: Uint8Array): boolean {
  const head = data.subarray(0, SNIFFED);
  if (head.includes(0)) return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(head, { stream: true });
    return true;
  } catch {
    return false;
  }
}

export function kindOfBytes(data: Uint8Array): Kind {
  const starts = (...bytes: number[]) => bytes.every((b, i) => data[i] === b);
  if (starts(0x25, 0x50, 0x44, 0x46)) return "pdf";
  if (starts(0x50, 0x4b, 0x03, 0x04)) return "archive";
  return looksLikeText(data) ? "text" : "hex";
}

/** Those that the page shows by an element of the browser, straight from their address. */
export const SHOWN_BY_BROWSER: ReadonlySet<Kind> = new Set(["image", "audio", "video"]);
/** Those whose first part alone makes sense. */
export const SHOWN_IN_PART: ReadonlySet<Kind> = new Set(["text", "markdown", "table", "hex"]);
/** Those that are written as text, and so have a source to look at. */
export function hasSource(kind: Kind): boolean {
  return ["markdown", "diagram", "html", "svg", "table", "notebook"].includes(kind);
}
