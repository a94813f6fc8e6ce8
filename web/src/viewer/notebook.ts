/** Jupyter notebooks: cells and their saved outputs. Nothing is run. */
import { colourCode } from "./code";
import { type Context, element, Unshowable, type Viewer } from "./context";
import { finishMarkdown, markdownToElement, sanitise } from "./markdown";
import { decodeText } from "./text";

type Json = Record<string, unknown>;

const LONGEST_OUTPUT = 100_000;

function text(value: unknown): string {
  return Array.isArray(value) ? value.join("") : typeof value === "string" ? value : "";
}

function plain(value: string, kind = ""): HTMLElement {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: terminal colours start with one
  const clean = value.replace(/\u001b\[[0-9;]*[A-Za-z]/g, "");
  const shown = clean.length > LONGEST_OUTPUT ? `${clean.slice(0, LONGEST_OUTPUT)}\n…` : clean;
  return element("pre", { class: `output ${kind}`, text: shown });
}

function output(out: Json): HTMLElement | null {
  if (out.output_type === "stream") return plain(text(out.text), out.name === "stderr" ? "error" : "");
  if (out.output_type === "error")
    return plain(text(out.traceback) || `${text(out.ename)}: ${text(out.evalue)}`, "error");
  const data = (out.data ?? {}) as Json;
  for (const type of ["image/png", "image/jpeg", "image/gif"]) {
    if (!data[type]) continue;
    const picture = element("img");
    picture.src = `data:${type};base64,${text(data[type]).replace(/\s/g, "")}`;
    picture.alt = text(data["text/plain"]) || "Output of the cell";
    return picture;
  }
  if (data["image/svg+xml"]) {
    const picture = element("img");
    picture.src = `data:image/svg+xml,${encodeURIComponent(text(data["image/svg+xml"]))}`;
    picture.alt = "Output of the cell";
    return picture;
  }
  if (data["text/html"]) return sanitise(text(data["text/html"]));
  if (data["text/markdown"]) return markdownToElement(text(data["text/markdown"]));
  if (data["text/latex"]) return markdownToElement(text(data["text/latex"]));
  return data["text/plain"] ? plain(text(data["text/plain"])) : null;
}

async function cell(
  record: Json,
  language: string,
  base: string | null,
  context: Context,
): Promise<HTMLElement> {
  const source = text(record.source);
  if (record.cell_type === "markdown") {
    const made = markdownToElement(source);
    await finishMarkdown(made, base, context);
    return element("section", { class: "cell" }, made);
  }
  const code = element("code", { text: source });
  await colourCode(code, record.cell_type === "code" ? language : "");
  const count = typeof record.execution_count === "number" ? `[${record.execution_count}]` : "[ ]";
  const input = element(
    "div",
    { class: "input" },
    element("span", { class: "count", text: count }),
    element("pre", {}, code),
  );
  const outputs = (Array.isArray(record.outputs) ? (record.outputs as Json[]) : [])
    .map(output)
    .filter((o) => o !== null);
  for (const made of outputs) if (made.classList.contains("prose")) await finishMarkdown(made, base, context);
  return element("section", { class: "cell code" }, input, ...outputs);
}

export const showNotebook: Viewer = async (host, file, context) => {
  const book = JSON.parse(decodeText(file.data)) as Json;
  const cells = Array.isArray(book.cells) ? (book.cells as Json[]) : null;
  if (!cells) throw new Unshowable("This is not a notebook of version 4.");
  const metadata = (book.metadata ?? {}) as { language_info?: { name?: string } };
  const language = metadata.language_info?.name ?? "python";
  const page = element("div", { class: "page" });
  host.append(page);
  context.visible();
  for (const record of cells) page.append(await cell(record, language, file.base, context));
};
