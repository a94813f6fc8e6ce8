/** What a program printed, as a terminal shows it: colours, `\r`, erased lines. Nothing else that it asks for is done. */
import {
  type IBufferCell,
  type IBufferLine,
  Terminal,
} from "@xterm/headless/lib-headless/xterm-headless.mjs";
import type { Colour, Run, TextRow } from "./printed";

/** Rows of a terminal take memory whether they are full or not. */
const COLUMNS = 240;
const ROWS = 5_000;
const LONGEST_RUN = 8_000;

const colour = (rgb: boolean, palette: boolean, value: number): Colour | undefined =>
  rgb ? `#${value.toString(16).padStart(6, "0")}` : palette ? value : undefined;

function runOf(cell: IBufferCell): Run {
  const run: Run = { text: "" };
  const fg = colour(cell.isFgRGB(), cell.isFgPalette(), cell.getFgColor());
  const bg = colour(cell.isBgRGB(), cell.isBgPalette(), cell.getBgColor());
  if (fg !== undefined) run.fg = fg;
  if (bg !== undefined) run.bg = bg;
  if (cell.isBold()) run.bold = true;
  if (cell.isDim()) run.dim = true;
  if (cell.isItalic()) run.italic = true;
  if (cell.isUnderline()) run.underline = true;
  if (cell.isStrikethrough()) run.struck = true;
  if (cell.isInverse()) run.inverse = true;
  return run;
}

const alike = (a: Run, b: Run): boolean =>
  a.fg === b.fg &&
  a.bg === b.bg &&
  a.bold === b.bold &&
  a.dim === b.dim &&
  a.italic === b.italic &&
  a.underline === b.underline &&
  a.struck === b.struck &&
  a.inverse === b.inverse;

function addLine(row: Run[], line: IBufferLine, scratch: IBufferCell, whole: boolean): void {
  const end = whole ? line.length : line.translateToString(true).length;
  // What is written in cells can be shorter or longer than the cells: the loop goes by cells, and stops at the last.
  let seen = 0;
  for (let x = 0; x < line.length && (whole || seen < end); x++) {
    const cell = line.getCell(x, scratch);
    if (!cell || cell.getWidth() === 0) continue;
    const text = cell.getChars() || " ";
    seen += text.length;
    const run = runOf(cell);
    const last = row.at(-1);
    if (last && alike(last, run) && last.text.length < LONGEST_RUN) last.text += text;
    else row.push({ ...run, text });
  }
}

/** The rows that a terminal would show. Its columns are not those of the page: lines that it wraps are joined again. */
export async function terminalRows(text: string): Promise<{ rows: TextRow[]; cut: boolean }> {
  const terminal = new Terminal({
    cols: COLUMNS,
    rows: 24,
    scrollback: ROWS,
    convertEol: true,
    allowProposedApi: true,
    logLevel: "off",
  });
  try {
    await new Promise<void>((done) => terminal.write(text, done));
    const buffer = terminal.buffer.normal;
    const last = Math.max(buffer.baseY + buffer.cursorY, 0);
    const scratch = buffer.getNullCell();
    const rows: Run[][] = [];
    for (let y = 0; y <= last; y++) {
      const line = buffer.getLine(y);
      if (!line) break;
      if (!line.isWrapped || !rows.length) rows.push([]);
      addLine(rows.at(-1) as Run[], line, scratch, buffer.getLine(y + 1)?.isWrapped === true);
    }
    while (rows.length && !rows.at(-1)?.length) rows.pop();
    return { rows, cut: buffer.length >= ROWS + 24 };
  } finally {
    terminal.dispose();
  }
}
