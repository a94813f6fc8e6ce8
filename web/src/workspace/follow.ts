/** What the model uses now: a tab of the browser, a file that it wrote, a command, a port. The newest use counts. */
import { effect, type ReadonlySignal, signal } from "@preact/signals";
import type { PortOverview } from "../common/api.generated";
import { chatPath } from "../common/sandbox";
import type { LiveView } from "../live/view";
import type { Call } from "./calls";

export type Focus =
  | { kind: "none" }
  | { kind: "browser" }
  | { kind: "file"; path: string; call: string }
  | { kind: "command"; call: string }
  | { kind: "port"; port: number };

/** A command often only drives the browser, or writes a file: what it does counts for more than that it runs. */
const COMMAND_DELAY_MS = 1_500;
/** The connection keeps the computer up: nobody holds it for a browser that is not used. */
const QUIET_MS = 60_000;
const QUIET_SHOWN_MS = 300_000;
const SETTLE_MS = 10_000;
const COMMANDS = new Set(["bash_tool", "sub_agent"]);
const WRITERS = new Set(["create_file", "str_replace"]);

/** What a call shows that it uses, and since when; null if that is nothing to look at. */
export function useOf(call: Call): { focus: Focus; at: number } | null {
  if (call.note !== undefined) return null;
  if (COMMANDS.has(call.tool)) return { focus: { kind: "command", call: call.id }, at: call.at * 1000 };
  const path = typeof call.arguments.path === "string" ? chatPath(call.arguments.path) : null;
  if (path === null || path === "" || path.startsWith("/") || call.state !== "done") return null;
  // What is only looked at may be a folder: a name with an ending is none.
  const seen = call.tool === "view" && /\.[^./]+$/.test(path);
  if (!WRITERS.has(call.tool) && !seen) return null;
  return { focus: { kind: "file", path, call: call.id }, at: (call.at + (call.seconds ?? 0)) * 1000 };
}

/** The newest use among the calls. */
export function latestUse(calls: readonly Call[]): { focus: Focus; at: number } | null {
  for (let n = calls.length - 1; n >= 0 && n >= calls.length - 50; n -= 1) {
    const call = calls[n];
    const use = call ? useOf(call) : null;
    if (use) return use;
  }
  return null;
}

const keyOf = (focus: Focus): string => JSON.stringify(focus);

export interface Sources {
  calls: ReadonlySignal<readonly Call[]>;
  overview: ReadonlySignal<PortOverview>;
  /** Whether what is followed is on the screen. */
  showing: ReadonlySignal<boolean>;
  /** A connection to the browser that runs; it starts none. */
  watch: () => Promise<LiveView>;
}

export class Follower {
  readonly #focus = signal<Focus>({ kind: "none" });
  readonly #pinned = signal<Focus | null>(null);
  readonly #live = signal<LiveView | null>(null);
  #at = 0;
  #told = "";
  #open: ReadonlySet<number> | null = null;
  #delayed: ReturnType<typeof setTimeout> | undefined;
  #runs = false;
  #connecting = false;
  #usedAt = 0;
  #stops: (() => void)[] = [];

  constructor(private readonly sources: Sources) {}

  get focus(): ReadonlySignal<Focus> {
    return this.#focus;
  }
  /** What is shown: what is used now, or what a person has pinned. */
  get shown(): Focus {
    return this.#pinned.value ?? this.#focus.value;
  }
  get pinned(): boolean {
    return this.#pinned.value !== null;
  }
  pin(): void {
    this.#pinned.value = this.#focus.peek();
  }
  unpin(): void {
    this.#pinned.value = null;
  }
  /** The connection to the browser, while one runs. */
  get live(): ReadonlySignal<LiveView | null> {
    return this.#live;
  }

  start(): () => void {
    this.#stops = [
      effect(() => this.#takeCalls(this.sources.calls.value)),
      effect(() => this.#takePorts(this.sources.overview.value)),
      effect(() => {
        const used = this.#live.value?.usedAt.value ?? 0;
        if (!used) return;
        this.#usedAt = Math.max(this.#usedAt, used);
        this.offer({ kind: "browser" }, used);
      }),
      effect(() => {
        if (this.sources.showing.value) this.#settle();
      }),
    ];
    const settle = () => this.#settle();
    const timer = setInterval(settle, SETTLE_MS);
    document.addEventListener("visibilitychange", settle);
    return () => {
      for (const stop of this.#stops) stop();
      clearTimeout(this.#delayed);
      clearInterval(timer);
      document.removeEventListener("visibilitychange", settle);
      this.#runs = false;
      this.#drop();
    };
  }

  /** A person wants to see the browser, though nobody uses it. */
  readonly look = (): void => {
    this.#usedAt = Date.now();
    this.#settle();
  };

  /** Something is used since then. An older use than the one that is shown changes nothing. */
  offer(focus: Focus, at: number): void {
    if (at < this.#at) return;
    clearTimeout(this.#delayed);
    const now = this.#focus.peek();
    const shows = () => {
      this.#at = at;
      if (keyOf(this.#focus.peek()) !== keyOf(focus)) this.#focus.value = focus;
    };
    if (focus.kind === "command" && now.kind !== "command" && now.kind !== "none")
      this.#delayed = setTimeout(shows, COMMAND_DELAY_MS);
    else shows();
  }

  #takeCalls(calls: readonly Call[]): void {
    const use = latestUse(calls);
    if (!use || keyOf(use.focus) === this.#told) return;
    this.#told = keyOf(use.focus);
    this.offer(use.focus, use.at);
    this.#settle();
  }

  #takePorts(overview: PortOverview): void {
    if (!overview.sandbox) return; // nothing was told yet
    const open = new Set(overview.ports.filter((port) => port.open).map((port) => port.port));
    const before = this.#open;
    this.#open = open;
    const opened = before ? [...open].filter((port) => !before.has(port)) : [];
    const newest = opened.at(-1);
    if (newest !== undefined) this.offer({ kind: "port", port: newest }, Date.now());
    this.#takeBrowser(overview.browser, before !== null);
    const shown = this.#focus.peek();
    if (shown.kind === "port" && !open.has(shown.port)) this.#fallBack();
  }

  #takeBrowser(runs: boolean, changed: boolean): void {
    if (runs === this.#runs) return;
    this.#runs = runs;
    if (runs && changed) {
      this.#usedAt = Date.now();
      this.offer({ kind: "browser" }, this.#usedAt);
    }
    if (!runs) {
      this.#drop();
      if (this.#focus.peek().kind === "browser") this.#fallBack();
    }
    this.#settle();
  }

  get #wanted(): boolean {
    if (!this.#runs || document.visibilityState !== "visible") return false;
    const past = Date.now() - this.#usedAt;
    const shown =
      this.sources.showing.peek() && (this.#pinned.peek() ?? this.#focus.peek()).kind === "browser";
    if (past < QUIET_MS || (shown && past < QUIET_SHOWN_MS)) return true;
    return this.sources.calls.peek().some((call) => call.state === "running" && call.note === undefined);
  }

  /** Connects to the browser, or lets go of it. */
  #settle(): void {
    const live = this.#live.peek();
    if (!this.#wanted) {
      if (live && !live.attached) this.#drop();
      else if (live && document.visibilityState === "visible" && !live.driving && this.#isQuiet())
        this.#drop();
      return;
    }
    if (live || this.#connecting) return;
    this.#connecting = true;
    void this.sources
      .watch()
      .then((made) => {
        if (!this.#wanted) return made.dispose();
        this.#live.value = made;
        made.connect();
        made.show(320, false);
      })
      .catch(() => undefined) // its script could not be had: the next look tries again
      .finally(() => {
        this.#connecting = false;
      });
  }

  #isQuiet(): boolean {
    return this.sources.showing.peek() && Date.now() - this.#usedAt >= QUIET_SHOWN_MS;
  }

  #drop(): void {
    this.#live.peek()?.dispose();
    this.#live.value = null;
  }

  /** What was shown is no more: the newest call is looked at instead. */
  #fallBack(): void {
    this.#at = 0;
    const use = latestUse(this.sources.calls.peek());
    this.#focus.value = use?.focus ?? { kind: "none" };
  }
}
