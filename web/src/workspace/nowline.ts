/** What the model does now, in one line: for the header of every page, the page's title and its icon. */

/** What is needed of a call. */
export interface NowCall {
  id: string;
  tool: string;
  description: string;
  arguments: Record<string, string>;
  at: number;
  seconds: number | null;
  state: "running" | "done" | "failed";
  note?: string;
}

export interface Now {
  kind: "working" | "idle" | "stopped" | "waiting";
  text: string;
  /** Milliseconds since 1970, from which the time is counted; null: it is not told. */
  since: number | null;
}

export interface Outside {
  /** The state of the computer, as the service tells it; empty: not known. */
  sandbox: string;
  /** Why the model waits for this person; empty: it does not. */
  waiting: string;
}

const MOST = 80;
const VERBS: Record<string, string> = {
  bash_tool: "a command",
  view: "looking at",
  create_file: "writing",
  str_replace: "editing",
  sub_agent: "a coding agent",
};

function titleOf(call: NowCall): string {
  const path = call.arguments.path?.slice(call.arguments.path.lastIndexOf("/") + 1);
  const first = (call.arguments.command ?? "").split("\n").find((line) => line.trim()) ?? "";
  const told = call.description || (path && `${VERBS[call.tool] ?? call.tool} ${path}`) || first;
  const text = (told || VERBS[call.tool] || call.tool).replace(/\s+/g, " ").trim();
  return text.length > MOST ? `${text.slice(0, MOST - 1)}…` : text;
}

export function nowOf(calls: readonly NowCall[], outside: Outside): Now {
  const real = calls.filter((call) => call.note === undefined);
  if (outside.waiting) return { kind: "waiting", text: outside.waiting, since: null };
  const running = real.findLast((call) => call.state === "running");
  if (running) return { kind: "working", text: titleOf(running), since: running.at * 1000 };
  if (["stopped", "failed"].includes(outside.sandbox)) return { kind: "stopped", text: "", since: null };
  const ends = real.map((call) => call.at + (call.seconds ?? 0));
  const last = ends.length ? Math.max(...ends) : null;
  return { kind: "idle", text: "", since: last === null ? null : last * 1000 };
}

/** Minutes and seconds, hours too where there are some. */
export function elapsed(since: number, now: number): string {
  const past = Math.max(0, Math.floor((now - since) / 1000));
  const two = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes, seconds] = [Math.floor(past / 3600), Math.floor(past / 60) % 60, past % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}

const clock = (at: number, now: number): string => {
  const date = new Date(at);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return now - at < 20 * 3600_000 ? time : `${date.toLocaleDateString()} ${time}`;
};

export function wordsOf(now: Now, at: number): string {
  switch (now.kind) {
    case "working":
      return `Working: ${now.text}${now.since === null ? "" : ` · ${elapsed(now.since, at)}`}`;
    case "waiting":
      return now.text;
    case "stopped":
      return "Stopped";
    case "idle":
      return now.since === null ? "Idle" : `Idle since ${clock(now.since, at)}`;
  }
}

const MARKS: Record<Now["kind"], string> = { working: "▶ ", waiting: "! ", idle: "", stopped: "" };
const DOTS: Record<Now["kind"], string> = {
  working: "#1a8a4a",
  waiting: "#c26a00",
  idle: "",
  stopped: "#7a8190",
};

export const titleFor = (now: Now, rest: string): string =>
  now.kind === "working"
    ? `${MARKS.working}${now.text} · ${rest}`
    : now.kind === "waiting"
      ? `${MARKS.waiting}${now.text} · ${rest}`
      : rest;

/** The page's own icon with a dot in a corner that tells the state; the plain one while nothing goes on. */
export function iconFor(now: Now): string | null {
  const dot = DOTS[now.kind];
  if (!dot) return null;
  const picture =
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect x="2" y="2" width="28" height="28" rx="7" fill="#2f55c8"/>' +
    '<path d="M16 6.5l8.5 4.8v9.4L16 25.5l-8.5-4.8v-9.4zM7.5 11.3L16 16.1l8.5-4.8M16 16.1v9.4" fill="none" stroke="#fff" stroke-width="2.2"/>' +
    `<circle cx="24" cy="24" r="7.5" fill="${dot}" stroke="#fff" stroke-width="2"/></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(picture)}`;
}
