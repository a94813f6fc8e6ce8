/** Coloured code inside other documents: code blocks of Markdown, cells of notebooks. */
import { highlightCode } from "@lezer/highlight";
import { StyleModule } from "style-mod";
import { colours } from "./colours";
import { languageNamed } from "./languages";

const LONGEST = 50_000;

export async function colourCode(target: HTMLElement, language: string): Promise<void> {
  const text = target.textContent ?? "";
  const known = text.length <= LONGEST ? await languageNamed(language) : null;
  if (!known) return;
  if (colours.module) StyleModule.mount(document, colours.module);
  const made = document.createDocumentFragment();
  highlightCode(
    text,
    known.parser.parse(text),
    colours,
    (piece, classes) => {
      if (!classes) {
        made.append(piece);
        return;
      }
      const span = document.createElement("span");
      span.className = classes;
      span.textContent = piece;
      made.append(span);
    },
    () => made.append("\n"),
  );
  target.replaceChildren(made);
}
