/**
 * The lines in which two texts differ, whatever their size. A library compares; texts that would take it too long are
 * first cut at lines that occur once in each of them (as in a patience diff), and the parts are compared. A part that
 * still takes too long is shown whole: the result is always true, and in the worst case longer than it had to be.
 */
import { diffArrays } from "diff";

export interface Change {
  /** Runs of lines: common to both, only before, only after. */
  parts: readonly Part[];
  added: number;
  removed: number;
}

export interface Part {
  sign: "+" | "-" | " ";
  lines: readonly string[];
}

/** Up to so many lines the library is asked about all of it first. */
const SMALL = 4_000;
const SMALL_MS = 800;
const PART_MS = 250;

const NO_NEWLINE = "\\ No newline at the end";

/** The end of the last line is no line of its own; that it is missing is one, where the other text has it. */
function linesOf(text: string, other: string): string[] {
  const lines = text === "" ? [] : text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  else if (lines.length && other.endsWith("\n")) lines.push(NO_NEWLINE);
  return lines;
}

class Parts {
  readonly parts: { sign: Part["sign"]; lines: string[] }[] = [];

  add(sign: Part["sign"], lines: readonly string[]): void {
    if (!lines.length) return;
    const last = this.parts.at(-1);
    if (last?.sign === sign) for (const line of lines) last.lines.push(line);
    else this.parts.push({ sign, lines: [...lines] });
  }

  /** Whether the library was done in time. */
  compare(old: readonly string[], now: readonly string[], timeout: number): boolean {
    if (old.length && now.length) {
      const found = diffArrays([...old], [...now], { timeout });
      if (!found) return false;
      for (const part of found) this.add(part.added ? "+" : part.removed ? "-" : " ", part.value);
    } else {
      this.add("-", old);
      this.add("+", now);
    }
    return true;
  }
}

/** Where a line stands that occurs once in a text; -1 for others. */
function places(lines: readonly string[]): Map<string, number> {
  const found = new Map<string, number>();
  lines.forEach((line, i) => {
    found.set(line, found.has(line) ? -1 : i);
  });
  return found;
}

/** The longest run of lines that occur once in both and in the same order: pairs of places. */
export function anchors(old: readonly string[], now: readonly string[]): [number, number][] {
  const there = places(now);
  const pairs: [number, number][] = [];
  for (const [line, i] of places(old)) {
    const j = i < 0 ? -1 : (there.get(line) ?? -1);
    if (j >= 0) pairs.push([i, j]);
  }
  pairs.sort((a, b) => a[0] - b[0]);
  const ends: number[] = []; // of the best run of each length, the pair that it ends with
  const before = new Int32Array(pairs.length).fill(-1);
  pairs.forEach(([, j], k) => {
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((pairs[ends[middle] as number] as [number, number])[1] < j) low = middle + 1;
      else high = middle;
    }
    before[k] = low > 0 ? (ends[low - 1] as number) : -1;
    ends[low] = k;
  });
  const run: [number, number][] = [];
  for (let k = ends.at(-1) ?? -1; k >= 0; k = before[k] as number) run.push(pairs[k] as [number, number]);
  return run.reverse();
}

export function lineDiff(before: string, after: string, limit = 8_000): Change {
  const old = linesOf(before, after);
  const now = linesOf(after, before);
  const made = new Parts();
  const least = Math.min(old.length, now.length);
  let head = 0;
  while (head < least && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < least - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  made.add(" ", old.slice(0, head));
  middle(made, old.slice(head, old.length - tail), now.slice(head, now.length - tail), limit);
  made.add(" ", old.slice(old.length - tail));
  const count = (sign: string) =>
    made.parts.reduce((sum, part) => sum + (part.sign === sign ? part.lines.length : 0), 0);
  return { parts: made.parts, added: count("+"), removed: count("-") };
}

function middle(made: Parts, old: readonly string[], now: readonly string[], limit: number): void {
  const until = performance.now() + limit;
  if (old.length + now.length <= SMALL && made.compare(old, now, Math.min(SMALL_MS, limit))) return;
  let [i, j] = [0, 0];
  for (const [k, l] of [...anchors(old, now), [old.length, now.length] as const]) {
    const [cut, put] = [old.slice(i, k), now.slice(j, l)];
    const left = until - performance.now();
    if (left <= 0 || !made.compare(cut, put, Math.min(PART_MS, left))) {
      made.add("-", cut);
      made.add("+", put);
    }
    if (k < old.length) made.add(" ", [old[k] as string]);
    [i, j] = [k + 1, l + 1];
  }
}

export interface DiffRow {
  sign: "+" | "-" | " " | "…";
  text: string;
}

const CONTEXT = 3;

/** The rows to show: of long common runs, what is next to a change. */
export function diffRows(change: Change): DiffRow[] {
  const rows: DiffRow[] = [];
  change.parts.forEach((part, i) => {
    const { sign, lines } = part;
    const [first, last] = [i === 0, i === change.parts.length - 1];
    const start = first ? 0 : CONTEXT;
    const end = last ? 0 : CONTEXT;
    const show = (from: number, to: number) => {
      for (let at = from; at < to; at++) rows.push({ sign, text: lines[at] as string });
    };
    if (sign !== " " || lines.length <= start + end + 1) {
      show(0, lines.length);
      return;
    }
    const hidden = lines.length - start - end;
    show(0, start);
    rows.push({
      sign: "…",
      text: `${hidden.toLocaleString("en")} ${hidden === 1 ? "line" : "lines"} as before`,
    });
    show(lines.length - end, lines.length);
  });
  return rows;
}
