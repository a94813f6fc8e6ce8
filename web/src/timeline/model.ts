/** The time line of a chat: what was done and what its browser showed, in the order in which it happened. */
import type { FrameRecord, Step, Timeline } from "../common/api.generated";

export interface Row {
  /** The entry with which it begins. */
  n: number;
  at: number;
  kind: string;
  tool: string;
  title: string;
  /** What was asked for. */
  text: string;
  user: string;
  /** How it ended; null while it runs. */
  end: { at: number; error: boolean; code: number | null; seconds: number; text: string } | null;
}

/** A point of the time line at which something changes. */
export interface Moment {
  at: number;
  /** The row that is current from then on; -1 before the first one. */
  row: number;
  /** The picture that is shown from then on; -1 before the first one. */
  frame: number;
}

/** Longer pauses are cut to this, in seconds. */
const LONGEST_PAUSE = 2;
const SHORTEST_PAUSE = 0.05;
/** Bounded as the journal and the pictures are; a page does not trust that. */
const MAX_ROWS = 50_000;

export const clock = (at: number): string =>
  Number.isFinite(at) && at > 0 && at < 8e12 ? new Date(at * 1000).toLocaleTimeString() : "";

export class TimelineModel {
  rows: Row[] = [];
  frames: FrameRecord[] = [];
  moments: Moment[] = [];
  next = 0;
  readonly #calls = new Map<string, Row>();
  #ends: { at: number; row: Row }[] = [];

  /** The time of the newest picture, in milliseconds. */
  get since(): number {
    return Math.floor((this.frames.at(-1)?.at ?? 0) * 1000);
  }

  /** Adds a part; whether anything came. */
  add(part: Timeline): boolean {
    for (const step of part.entries) this.#step(step);
    this.next = Math.max(this.next, part.next);
    const known = new Set(this.frames.map((frame) => frame.id));
    const fresh = part.frames.filter((frame) => !known.has(frame.id));
    this.frames = [...this.frames, ...fresh].sort((a, b) => a.at - b.at);
    const came = part.entries.length > 0 || fresh.length > 0;
    if (came) this.#arrange();
    return came;
  }

  #step(step: Step): void {
    if (step.kind === "end") {
      const row = this.#calls.get(step.call ?? "");
      if (!row || row.end) return;
      row.end = {
        at: step.at,
        error: step.error === true,
        code: step.exit_code ?? null,
        seconds: step.seconds ?? 0,
        text: step.text ?? "",
      };
      this.#ends.push({ at: step.at, row });
      return;
    }
    if (this.rows.length >= MAX_ROWS) return;
    const row: Row = {
      n: step.n,
      at: step.at,
      kind: step.kind,
      tool: step.tool ?? "",
      title: step.title ?? step.kind,
      text: step.text ?? "",
      user: step.user ?? "",
      end: null,
    };
    if (step.kind === "call" && step.call) this.#calls.set(step.call, row);
    this.rows.push(row);
  }

  /** Everything by its time; the host's clock may have gone back, so rows keep the order of their numbers. */
  #arrange(): void {
    const place = new Map(this.rows.map((row, i) => [row, i]));
    const changes = [
      ...this.rows.map((row, i) => ({ at: row.at, row: i, frame: -1 })),
      ...this.#ends.map(({ at, row }) => ({ at, row: place.get(row) ?? -1, frame: -1 })),
      ...this.frames.map((frame, i) => ({ at: frame.at, row: -1, frame: i })),
    ].sort((a, b) => a.at - b.at);
    let row = -1;
    let frame = -1;
    this.moments = changes.map((change) => {
      if (change.row >= 0) row = change.row;
      if (change.frame >= 0) frame = change.frame;
      return { at: change.at, row, frame };
    });
  }

  /** The first moment at which a row is as it ended, or begins. */
  momentOf(row: number): number {
    const wanted = this.rows[row];
    if (!wanted) return 0;
    const at = wanted.end?.at ?? wanted.at;
    const found = this.moments.findIndex((moment) => moment.row === row && moment.at >= at);
    return found < 0 ? this.moments.findIndex((moment) => moment.row === row) : found;
  }

  /** Milliseconds that a moment is shown for before the next one. */
  pause(place: number, speed: number): number {
    const gap = (this.moments[place + 1]?.at ?? 0) - (this.moments[place]?.at ?? 0);
    return (Math.min(LONGEST_PAUSE, Math.max(SHORTEST_PAUSE, gap)) * 1000) / speed;
  }
}

/** What the strip above the slider shows: of each of so many parts, the most important thing in it. */
export function marksOf(model: TimelineModel, parts: number): ("" | "frame" | "call" | "bad")[] {
  const marks: ("" | "frame" | "call" | "bad")[] = new Array(parts).fill("");
  const last = Math.max(1, model.moments.length - 1);
  model.moments.forEach((moment, i) => {
    const part = Math.min(parts - 1, Math.floor((i / last) * parts));
    const before = model.moments[i - 1];
    const row = model.rows[moment.row];
    const kind =
      moment.row !== before?.row || moment.frame === before?.frame
        ? row?.end?.error && row.end.at === moment.at
          ? "bad"
          : "call"
        : "frame";
    if (marks[part] === "" || kind === "bad" || (kind === "call" && marks[part] === "frame"))
      marks[part] = kind;
  });
  return marks;
}
