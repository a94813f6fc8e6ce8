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

/** A call is over. `exit_code` and `signal` come where the command had one. */
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

export type ActivityEvent = CallEvent | OutputEvent | EndEvent | NoteEvent | ServiceEvent;
