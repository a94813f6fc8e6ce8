/** The chat's tool calls, put together from the events of the stream. */

export type ActivityEvent =
  | {
      type: "call";
      id: string;
      parent?: string;
      tool: string;
      description?: string;
      arguments?: Record<string, unknown>;
      at?: number;
    }
  | { type: "output"; id: string; text: string }
  | {
      type: "end";
      id: string;
      seconds?: number;
      exit_code?: number | null;
      error?: boolean;
      result?: string;
    };

export interface Call {
  id: string;
  parent: string | null;
  tool: string;
  description: string;
  arguments: Record<string, unknown>;
  at: number | null;
  output: string;
  state: "running" | "done" | "failed";
  seconds: number | null;
  exitCode: number | null;
}

const MOST_CALLS = 500;
/** What is kept of a call's output: the end, where the news is. */
const TAIL = 20_000;

export function apply(calls: readonly Call[], event: ActivityEvent): readonly Call[] {
  if (event.type === "call") {
    if (calls.some((c) => c.id === event.id)) return calls;
    const call: Call = {
      id: event.id,
      parent: event.parent ?? null,
      tool: event.tool,
      description: event.description ?? "",
      arguments: event.arguments ?? {},
      at: event.at ?? null,
      output: "",
      state: "running",
      seconds: null,
      exitCode: null,
    };
    return [...calls, call].slice(-MOST_CALLS);
  }
  return calls.map((call) => {
    if (call.id !== event.id) return call;
    if (event.type === "output") return { ...call, output: (call.output + event.text).slice(-TAIL) };
    return {
      ...call,
      state: event.error ? "failed" : "done",
      seconds: event.seconds ?? null,
      exitCode: event.exit_code ?? null,
      output: call.output || (event.result ?? "").slice(-TAIL),
    };
  });
}

export function parseEvent(text: string): ActivityEvent | null {
  try {
    const event = JSON.parse(text) as { type?: unknown; id?: unknown };
    const known = event.type === "call" || event.type === "output" || event.type === "end";
    return known && typeof event.id === "string" ? (event as ActivityEvent) : null;
  } catch {
    return null;
  }
}

const text = (value: unknown): string =>
  typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);

/** The one line that says what a call does. */
export function gist(call: Call): string {
  const a = call.arguments;
  return (
    text(a.command ?? a.path ?? a.prompt ?? "")
      .split("\n")[0]
      ?.slice(0, 200) ?? ""
  );
}

export interface DiffLine {
  sign: "+" | "-" | " ";
  text: string;
}

/** An edit as lines: what both ends share is shown once. */
export function diffOf(before: string, after: string): DiffLine[] {
  const old = before === "" ? [] : before.split("\n");
  const now = after.split("\n");
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail))
    tail += 1;
  const line = (sign: DiffLine["sign"]) => (value: string) => ({ sign, text: value });
  return [
    ...old.slice(0, head).map(line(" ")),
    ...old.slice(head, old.length - tail).map(line("-")),
    ...now.slice(head, now.length - tail).map(line("+")),
    ...old.slice(old.length - tail).map(line(" ")),
  ];
}

export function asMarkdown(calls: readonly Call[]): string {
  return calls
    .map((call) => {
      const head = `## ${call.tool}: ${call.description || gist(call)}`;
      const fence = "`".repeat(Math.max(3, ...[...call.output.matchAll(/`+/g)].map((m) => m[0].length + 1)));
      const end =
        call.state === "running"
          ? "running"
          : `${call.state}${call.seconds === null ? "" : `, ${call.seconds} s`}`;
      return `${head}\n\n${end}\n${call.output ? `\n${fence}\n${call.output}\n${fence}\n` : ""}`;
    })
    .join("\n");
}
