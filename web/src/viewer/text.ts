/** Text and code: line numbers, colours, folding, search. Only the lines on the screen are in the document. */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  bracketMatching,
  codeFolding,
  foldGutter,
  foldKeymap,
  syntaxHighlighting,
} from "@codemirror/language";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { colours } from "./colours";
import type { Editing, Viewer } from "./context";
import { languageOfFile } from "./languages";

/** A longer line would hold up the browser's layout while it is coloured. */
const LONGEST_COLOURED_LINE = 20_000;

export function decodeText(data: Uint8Array): string {
  const wide =
    data[0] === 0xff && data[1] === 0xfe
      ? "utf-16le"
      : data[0] === 0xfe && data[1] === 0xff
        ? "utf-16be"
        : null;
  if (wide) return new TextDecoder(wide).decode(data);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return mended(data);
  }
}

/** A text that is not UTF-8 is one of Windows, unless it has more letters of UTF-8 than bytes that fit nowhere. */
function mended(data: Uint8Array): string {
  const text = new TextDecoder().decode(data);
  let faults = 0;
  let letters = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === 0xfffd) faults += 1;
    else if (code > 0x7f) letters += 1;
  }
  return letters > faults ? text : new TextDecoder("windows-1252").decode(data);
}

function hasLongLine(text: string): boolean {
  let start = 0;
  for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
    if (end - start > LONGEST_COLOURED_LINE) return true;
    start = end + 1;
  }
  return text.length - start > LONGEST_COLOURED_LINE;
}

/** What makes the text one that can be changed. Tab leaves the editor after Escape, as CodeMirror has it. */
function editable(editing: Editing, text: string): Extension[] {
  const windows = text.includes("\r\n") && !/[^\r]\n|\r[^\n]/.test(text);
  return [
    // One kind of line end is kept as it is; where they are mixed, each stays a character of its own.
    EditorState.lineSeparator.of(windows ? "\r\n" : "\n"),
    history(),
    keymap.of([
      {
        key: "Mod-s",
        preventDefault: true,
        run: () => {
          editing.save();
          return true;
        },
      },
      ...defaultKeymap,
      ...historyKeymap,
      indentWithTab,
    ]),
    EditorView.updateListener.of((update) => {
      if (update.docChanged) editing.changed();
    }),
  ];
}

export const showText: Viewer = async (host, file, context) => {
  const { editing } = context;
  const text = editing
    ? new TextDecoder("utf-8", { ignoreBOM: true }).decode(file.data)
    : decodeText(file.data);
  const long = hasLongLine(text);
  const language = long ? null : await languageOfFile(file.name);
  const extensions: Extension[] = [
    lineNumbers(),
    highlightSpecialChars(),
    drawSelection(),
    highlightActiveLine(),
    highlightActiveLineGutter(),
    highlightSelectionMatches(),
    bracketMatching(),
    codeFolding(),
    foldGutter(),
    search({ top: true }),
    keymap.of([...searchKeymap, ...foldKeymap]),
    syntaxHighlighting(colours),
    ...(editing ? editable(editing, text) : [EditorState.readOnly.of(true)]),
    EditorView.contentAttributes.of({ "aria-label": "Contents of the file" }),
    ...(long ? [EditorView.lineWrapping] : []),
    ...(language ? [language.extension] : []),
  ];
  const view = new EditorView({ parent: host, state: EditorState.create({ doc: text, extensions }) });
  editing?.reads(() => view.state.sliceDoc());
  if (file.line && file.line <= view.state.doc.lines) {
    const { from } = view.state.doc.line(file.line);
    view.dispatch({
      selection: { anchor: from },
      effects: EditorView.scrollIntoView(from, { y: "center" }),
    });
  }
  if (editing) view.focus();
};
