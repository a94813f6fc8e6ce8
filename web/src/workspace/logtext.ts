/** The end of a log, as rows: its colours are kept, what else it would have a terminal do is left out. */
import type { Colour, Run, TextRow } from "../activity/printed";
import type { TailPiece } from "../common/files.generated";
import { plainText } from "../common/format";

/** Characters that are kept: a log may grow for days. */
const MOST = 1_000_000;
/** Rows of a block: only the last block changes when the log grows. */
const BLOCK = 60;
/** A longer row would hold up the layout of the page. */
const LONGEST_ROW = 20_000;

export interface Block {
  /** The number of its first row, counted from the first that was read. */
  first: number;
  rows: readonly TextRow[];
  length: number;
}

type Pen = Omit<Run, "text">;

export interface Log {
  blocks: readonly Block[];
  /** The last line, as far as it is written. */
  rest: string;
  /** What the next character looks like. */
  pen: Pen;
  size: number;
  /** Some of the file comes before what is shown. */
  cut: boolean;
}

export const EMPTY: Log = { blocks: [], rest: "", pen: {}, size: 0, cut: false };

/** 256 colours and true ones, in either way of writing them: what comes after 38 or 48. */
function colourOf(codes: number[]): Colour | undefined {
  const kind = codes.shift();
  if (kind === 5) return codes.shift();
  if (kind !== 2) return undefined;
  const parts = codes.splice(0, 3).map((part) => Math.min(255, Math.max(0, part || 0)));
  return parts.length === 3
    ? `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`
    : undefined;
}

const FLAGS: Record<number, keyof Pen> = {
  1: "bold",
  2: "dim",
  3: "italic",
  4: "underline",
  7: "inverse",
  9: "struck",
};

/** The pen after a sequence that selects how characters look. */
export function withSequence(pen: Pen, sequence: string): Pen {
  const codes = sequence.split(/[;:]/).map(Number);
  let next: Pen = { ...pen };
  const put = (name: "fg" | "bg", colour: Colour | undefined) => {
    if (colour === undefined || (typeof colour === "number" && !(colour >= 0 && colour < 256)))
      delete next[name];
    else next[name] = colour;
  };
  while (codes.length) {
    const code = codes.shift() || 0;
    const flag = FLAGS[code];
    if (code === 0) next = {};
    else if (flag) next = { ...next, [flag]: true };
    else if (code === 22) {
      delete next.bold;
      delete next.dim;
    } else if (code === 23) delete next.italic;
    else if (code === 24) delete next.underline;
    else if (code === 27) delete next.inverse;
    else if (code === 29) delete next.struck;
    else if (code === 38 || code === 48) put(code === 38 ? "fg" : "bg", colourOf(codes));
    else if (code === 39 || code === 49) put(code === 39 ? "fg" : "bg", undefined);
    else if (code >= 30 && code < 38) put("fg", code - 30);
    else if (code >= 40 && code < 48) put("bg", code - 40);
    else if (code >= 90 && code < 98) put("fg", code - 82);
    else if (code >= 100 && code < 108) put("bg", code - 92);
  }
  return next;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: the sequences of a terminal begin with one
const STYLE = /\u001b\[([\d;:]*)m/;

/** One line as it looks, and the pen after it. What `\r` wrote over is not shown. */
export function rowOf(line: string, pen: Pen): { row: TextRow; pen: Pen } {
  const whole = line.endsWith("\r") ? line.slice(0, -1) : line;
  const written = whole.slice(whole.lastIndexOf("\r") + 1);
  const row: Run[] = [];
  let now = pen;
  let left = LONGEST_ROW;
  written.split(STYLE).forEach((part, i) => {
    if (i % 2) now = withSequence(now, part.slice(0, 200));
    else if (part && left > 0) {
      row.push({ ...now, text: plainText(part.slice(0, left)) });
      left -= part.length;
    }
  });
  if (left < 0) row.push({ text: ` … ${(-left).toLocaleString("en")} more characters`, dim: true });
  return { row: row.length ? row : [{ text: "" }], pen: now };
}

export function withPiece(log: Log, piece: TailPiece): Log {
  const before = piece.reset ? { ...EMPTY, cut: piece.start > 0 } : log;
  const lines = (before.rest + piece.text).split("\n");
  const rest = (lines.pop() ?? "").slice(-MOST);
  const blocks = [...before.blocks];
  let { pen } = before;
  for (const line of lines) {
    const made = rowOf(line, pen);
    pen = made.pen;
    const last = blocks.at(-1);
    if (last && last.rows.length < BLOCK)
      blocks[blocks.length - 1] = {
        first: last.first,
        rows: [...last.rows, made.row],
        length: last.length + line.length + 1,
      };
    else
      blocks.push({
        first: last ? last.first + last.rows.length : 0,
        rows: [made.row],
        length: line.length + 1,
      });
  }
  let length = blocks.reduce((sum, block) => sum + block.length, rest.length);
  let gone = 0;
  while (length > MOST && gone < blocks.length) {
    length -= blocks[gone]?.length ?? 0;
    gone += 1;
  }
  return { blocks: blocks.slice(gone), rest, pen, size: piece.size, cut: before.cut || gone > 0 };
}
