/** The chat's tool calls, put together from the events of the stream. */
import type {
  ActivityEvent,
  CallEvent,
  ChangedFile,
  EndEvent,
  Ending,
  NoteEvent,
  StepEvent,
  UsageEvent,
} from "./events.generated";

export type { ActivityEvent };

/** Output without a gap; `from` is the place of its first character in all of it, in characters. */
export interface Piece {
  from: number;
  text: string;
}

export interface Call {
  id: string;
  tool: string;
  description: string;
  arguments: Record<string, string>;
  at: number;
  /** All that is kept of the output, with a mark in words where something is left out. */
  output: string;
  pieces: readonly Piece[];
  /** How many characters of output there were so far, shown or not. */
  received: number;
  /** What the tool answered beside its output. */
  result: string;
  /** Why it ended so, and what the network did not let through. */
  notes: readonly string[];
  state: "running" | "done" | "failed";
  /** Empty while it runs; `unknown`: the service that began it is gone. */
  ending: Ending | "unknown" | "";
  signal: string;
  seconds: number | null;
  exitCode: number | null;
  /** Something else that happened, in words: such a one is no call. */
  note?: string;
  /** The files that the tool itself wrote. */
  files: readonly ChangedFile[];
  /** What it wrote was taken back. */
  undone: boolean;
  /** Hashes of the pictures in its answer. */
  pictures: readonly string[];
  /** What the coding agent did that it ran, and used. */
  steps: readonly StepEvent[];
  usage: UsageEvent | null;
}

/** Steps kept of one agent run: the latest. */
const MOST_STEPS = 400;
/** What is kept of a call's output: the end, where the news is. */
const TAIL = 20_000;

const WORDS: Record<string, string> = {
  timed_out: "timed out",
  out_of_memory: "out of memory",
  killed: "killed",
  cancelled: "cancelled",
  disconnected: "client left",
  sandbox_gone: "computer gone",
  interrupted: "interrupted",
  unknown: "end not known",
};

/** How a call stands, in a word or two. */
export function stateOf(call: Call): string {
  return WORDS[call.ending] ?? call.state;
}

/** What is told of the end beside the state: exit code, signal. */
export function codeOf(call: Call): string {
  if (call.signal) return call.signal;
  return call.exitCode !== null && call.exitCode !== 0 ? `exit code ${call.exitCode}` : "";
}

export function callOf(event: CallEvent): Call {
  return {
    id: event.id,
    tool: event.tool,
    description: event.description ?? "",
    arguments: event.arguments,
    at: event.at,
    output: "",
    pieces: [],
    received: 0,
    result: "",
    notes: [],
    state: "running",
    ending: "",
    signal: "",
    seconds: null,
    exitCode: null,
    files: [],
    undone: false,
    pictures: [],
    steps: [],
    usage: null,
  };
}

export function noted(event: NoteEvent): Call {
  const empty = { type: "call" as const, id: event.id, tool: event.kind, description: null, arguments: {} };
  return { ...callOf({ ...empty, at: event.at }), state: "done", note: event.text };
}

const left = (count: number) => `[${count.toLocaleString("en")} characters left out]\n`;

/** The pieces in one text. */
function joined(pieces: readonly Piece[]): string {
  let place = 0;
  let whole = "";
  for (const { from, text } of pieces) {
    if (from > place) whole += `${whole && !whole.endsWith("\n") ? "\n" : ""}${left(from - place)}`;
    whole += text;
    place = from + characters(text);
  }
  return whole;
}

/** Counted as the service counts: one for each code point. */
export const characters = (text: string): number =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: all that are one unit, which most texts are all of
  /^[\u0000-\ud7ff\ue000-\uffff]*$/.test(text) ? text.length : [...text].length;

/** The last units of a text, and never half of a character. */
function lastOf(text: string, most: number): string {
  const cut = text.length - most;
  const half = (text.charCodeAt(cut) & 0xfc00) === 0xdc00;
  return text.slice(half ? cut + 1 : cut);
}

/** The end of what was printed, where the news is. */
function trimmed(pieces: readonly Piece[]): readonly Piece[] {
  const kept: Piece[] = [];
  let room = TAIL;
  for (const piece of pieces.toReversed()) {
    if (room <= 0) break;
    const text = piece.text.length <= room ? piece.text : lastOf(piece.text, room);
    const from =
      text.length === piece.text.length ? piece.from : piece.from + characters(piece.text) - characters(text);
    kept.unshift({ from, text });
    room -= text.length;
  }
  return kept;
}

/** The service may tell a piece again, in part or in a larger one; and it leaves out what is too much. */
function withOutput(call: Call, text: string, from: number): Call {
  const end = from + characters(text);
  if (end <= call.received) return call;
  const missed = from - call.received;
  const news = missed < 0 ? [...text].slice(-missed).join("") : text;
  const last = call.pieces.at(-1);
  const pieces =
    last && missed <= 0
      ? [...call.pieces.slice(0, -1), { from: last.from, text: last.text + news }]
      : [...call.pieces, { from: Math.max(from, call.received), text: news }];
  const kept = trimmed(pieces);
  return { ...call, pieces: kept, output: joined(kept), received: end };
}

function withStep(call: Call, step: StepEvent): Call {
  if ((call.steps.at(-1)?.number ?? -1) >= step.number) return call;
  return { ...call, steps: [...call.steps, step].slice(-MOST_STEPS) };
}

function ended(call: Call, event: EndEvent): Call {
  return {
    ...call,
    state: event.error ? "failed" : "done",
    ending: event.ending,
    signal: event.signal ?? "",
    seconds: event.seconds,
    exitCode: event.exit_code ?? null,
    result: event.result,
    notes: event.notes,
    files: event.files ?? [],
    pictures: event.pictures ?? [],
  };
}

const LOST = "The service was started again while this ran: how it ended is not known.";

/** The end of what ran is not known when another service answers: it tells what goes on, and what ended. */
export function lost(call: Call): Call {
  return call.state === "running" ? { ...call, state: "failed", ending: "unknown", notes: [LOST] } : call;
}

/** A call of which one more event came. One that is told again goes on, unless its end is known. */
export function changed(call: Call, event: Exclude<ActivityEvent, { type: "service" | "note" }>): Call {
  switch (event.type) {
    case "call":
      return call.ending === "unknown" || call.ending === "interrupted"
        ? { ...call, state: "running", ending: "", notes: [] }
        : call;
    case "output":
      return withOutput(call, event.text, event.from);
    case "step":
      return withStep(call, event);
    case "usage":
      return { ...call, usage: event };
    case "undo":
      return { ...call, undone: event.undone };
    case "end":
      return ended(call, event);
  }
}

export function parseEvent(text: string): ActivityEvent | null {
  try {
    const event = JSON.parse(text) as { type?: unknown; id?: unknown };
    const known = ["call", "output", "step", "usage", "end", "undo", "note", "service"].includes(
      String(event.type),
    );
    return known && typeof event.id === "string" ? (event as ActivityEvent) : null;
  } catch {
    return null;
  }
}

const text = (value: unknown): string =>
  typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);

/** What a call is given to do, whole: a command has many lines as often as one. */
export function task(call: Call): string {
  const a = call.arguments;
  return text(a.command ?? a.prompt ?? a.task ?? a.path ?? "");
}

/** The one line that says what a call does. */
export function gist(call: Call): string {
  const lines = task(call).split("\n");
  const first = lines.find((line) => line.trim() !== "") ?? "";
  return first.length > 200 || lines.length > 1 ? `${first.slice(0, 200)} …` : first;
}

const SHOWN_APART = new Set([
  "command",
  "prompt",
  "task",
  "path",
  "old_str",
  "new_str",
  "content",
  "file_text",
]);

/** The other arguments, each with its name. */
export function options(call: Call): string[] {
  return Object.entries(call.arguments)
    .filter(([name]) => !SHOWN_APART.has(name))
    .map(([name, value]) => `${name}: ${text(value)}`);
}

export function fileOf(call: Call): ChangedFile | null {
  return call.files[0] ?? null;
}

/** Before and after of an edit or a new file, and the line where both begin; null where that is not known as text. */
export function editOf(call: Call): { before: string; after: string; line: number } | null {
  const a = call.arguments;
  const file = fileOf(call);
  if (file && file.text_before !== null && file.text_after !== null)
    return { before: file.text_before, after: file.text_after, line: file.line };
  const after = a.new_str ?? a.content ?? a.file_text;
  if (typeof after !== "string") return null;
  // A whole file that replaced one of which the text is not known: only its size can be compared.
  if (file && file.before !== null && a.new_str === undefined) return null;
  return { before: typeof a.old_str === "string" ? a.old_str : "", after, line: 1 };
}
