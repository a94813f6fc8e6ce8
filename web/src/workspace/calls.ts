/** The chat's tool calls, put together from the events of the stream. */

import { diffOf } from "../common/diff";
import type { ActivityEvent, CallEvent, ChangedFile, EndEvent, Ending, NoteEvent } from "./events.generated";

export type { ActivityEvent };

export interface Call {
  id: string;
  tool: string;
  description: string;
  arguments: Record<string, string>;
  at: number;
  output: string;
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
  /** The files that the tool itself wrote. */
  files: readonly ChangedFile[];
  /** What it wrote was taken back. */
  undone: boolean;
  /** Something else that happened, in words: such a one is no call. */
  note?: string;
}

const MOST_CALLS = 500;
/** What is kept of a call's output: the end, where the news is. */
const TAIL = 20_000;

const WORDS: Record<string, string> = {
  timed_out: "timed out",
  out_of_memory: "out of memory",
  killed: "killed",
  cancelled: "cancelled",
  disconnected: "client left",
  sandbox_gone: "sandbox gone",
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
  };
}

function noted(event: NoteEvent): Call {
  const empty = { type: "call" as const, id: event.id, tool: event.kind, description: null, arguments: {} };
  return { ...callOf({ ...empty, at: event.at }), state: "done", note: event.text };
}

/** The service may tell a piece again, in part or in a larger one; and it leaves out what is too much. */
function withOutput(call: Call, text: string, from: number): Call {
  const characters = [...text];
  const end = from + characters.length;
  if (end <= call.received) return call;
  const missed = from - call.received;
  const gap =
    missed > 0
      ? `${call.output && !call.output.endsWith("\n") ? "\n" : ""}[${missed.toLocaleString("en")} characters left out]\n`
      : "";
  const news = missed < 0 ? characters.slice(-missed).join("") : text;
  return { ...call, output: (call.output + gap + news).slice(-TAIL), received: end };
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
  };
}

const LOST = "The service was started again while this ran: how it ended is not known.";

/** A call that is told again goes on, unless its end is known. */
function withCall(calls: readonly Call[], event: CallEvent): readonly Call[] {
  if (!calls.some((c) => c.id === event.id)) return [...calls, callOf(event)].slice(-MOST_CALLS);
  return calls.map((call) =>
    call.id === event.id && (call.ending === "unknown" || call.ending === "interrupted")
      ? { ...call, state: "running", ending: "", notes: [] }
      : call,
  );
}

/** The end of what ran is not known when another service answers: it tells what goes on, and what ended. */
export function apply(calls: readonly Call[], event: ActivityEvent): readonly Call[] {
  if (event.type === "service")
    return calls.map((call) =>
      call.state === "running" ? { ...call, state: "failed", ending: "unknown", notes: [LOST] } : call,
    );
  if (event.type === "call") return withCall(calls, event);
  if (event.type === "note")
    return calls.some((c) => c.id === event.id) ? calls : [...calls, noted(event)].slice(-MOST_CALLS);
  return calls.map((call) => {
    if (call.id !== event.id) return call;
    if (event.type === "output") return withOutput(call, event.text, event.from);
    if (event.type === "undo") return { ...call, undone: event.undone };
    return ended(call, event);
  });
}

export function parseEvent(text: string): ActivityEvent | null {
  try {
    const event = JSON.parse(text) as { type?: unknown; id?: unknown };
    const known = ["call", "output", "end", "undo", "note", "service"].includes(String(event.type));
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

/** A block that nothing in the text can end. */
function fenced(content: string, language = ""): string {
  const longest = Math.max(2, ...[...content.matchAll(/`+/g)].map((m) => m[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${content}${content.endsWith("\n") ? "" : "\n"}${fence}`;
}

function callAsMarkdown(call: Call): string {
  const title = (call.description || gist(call)).replace(/\s+/g, " ");
  const end = [stateOf(call), codeOf(call), call.seconds === null ? "" : `${call.seconds} s`];
  const edit = editOf(call);
  const parts = [
    `## ${call.tool}${title ? `: ${title}` : ""}`,
    end.filter(Boolean).join(", "),
    task(call) && fenced(task(call), call.arguments.command === undefined ? "" : "bash"),
    options(call)
      .map((option) => `- ${option.replace(/\s+/g, " ")}`)
      .join("\n"),
    edit &&
      fenced(
        diffOf(edit.before, edit.after)
          .map((line) => `${line.sign}${line.text}`)
          .join("\n"),
        "diff",
      ),
    call.output && fenced(call.output),
    call.result && fenced(call.result),
    call.notes.join("\n\n"),
  ];
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

export function asMarkdown(calls: readonly Call[]): string {
  return calls
    .filter((call) => call.note === undefined)
    .map(callAsMarkdown)
    .join("\n");
}
