// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Ending =
  | "done"
  | "failed"
  | "timed_out"
  | "out_of_memory"
  | "killed"
  | "cancelled"
  | "disconnected"
  | "sandbox_gone";

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

/** The service that sends the stream: what another one began, it cannot tell the end of. */
export interface ServiceEvent {
  type: "service";
  id: string;
}

export type ActivityEvent = CallEvent | OutputEvent | EndEvent | ServiceEvent;
