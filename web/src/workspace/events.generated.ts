// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Ending =
  | "done"
  | "failed"
  | "timed_out"
  | "out_of_memory"
  | "killed"
  | "cancelled"
  | "disconnected"
  | "sandbox_gone"
  | "interrupted";

/** A tool call began. */
export interface CallEvent {
  type: "call";
  id: string;
  tool: string;
  description: string | null;
  arguments: Record<string, string>;
  at: number;
}

export interface OutputEvent {
  type: "output";
  id: string;
  from: number;
  text: string;
}

/** A file that a tool wrote: hash and size before and after. Where both are short texts, the lines that differ, with some around them; `line` is the number of the first. `kept`: the change can be undone; if not, `reason` says why. */
export interface ChangedFile {
  path: string;
  before: string | null;
  after: string | null;
  size_before: number;
  size_after: number;
  kept: boolean;
  reason: string;
  line: number;
  text_before: string | null;
  text_after: string | null;
  cut_before: number;
  cut_after: number;
}

/** A call is over. `exit_code` and `signal` come where the command had one. `pictures` are the hashes of those that the answer has; the service gives them by that name. */
export interface EndEvent {
  type: "end";
  id: string;
  seconds: number;
  ending: Ending;
  error: boolean;
  exit_code?: number;
  signal?: string;
  result: string;
  notes: string[];
  files?: ChangedFile[];
  pictures?: string[];
}

export type StepKind = "turn" | "text" | "tool" | "result" | "note";

/** One step of the coding agent that a call runs. `key` pairs a result with its tool; `parent` is the key of the tool that the step belongs to, where an agent started another one. */
export interface StepEvent {
  type: "step";
  id: string;
  number: number;
  kind: "turn" | "text" | "tool" | "result" | "note";
  tool: string;
  text: string;
  key: string;
  parent: string;
  error: boolean;
  at: number;
}

/** What the coding agent of a call has used so far, as it reports it. */
export interface UsageEvent {
  type: "usage";
  id: string;
  session: string;
  model: string;
  turns: number;
  input_tokens: number;
  output_tokens: number;
  dollars: number | null;
}

/** What a call wrote was taken back, or, with `undone` false, made again. */
export interface UndoEvent {
  type: "undo";
  id: string;
  path: string;
  undone: boolean;
  at: number;
}

/** Something else that happened in the chat: an upload, a take-over, an egress denial, a start or stop. */
export interface NoteEvent {
  type: "note";
  id: string;
  kind: string;
  text: string;
  at: number;
}

/** The service that sends the stream. Calls that ran under another one and go on here are told again. */
export interface ServiceEvent {
  type: "service";
  id: string;
}

export type ActivityEvent =
  | CallEvent
  | OutputEvent
  | StepEvent
  | UsageEvent
  | EndEvent
  | UndoEvent
  | NoteEvent
  | ServiceEvent;
