/** The numbers and the table of the admin page, as the service sends them. */
import { signal } from "@preact/signals";
import { Backoff } from "../common/backoff";
import { HttpError, request } from "../common/http";
import type { Overview } from "./overview.generated";

export const SORTS = [
  "chat",
  "tenant",
  "state",
  "user",
  "age",
  "idle",
  "cpu",
  "memory",
  "disk",
  "connections",
  "tool",
  "errors",
] as const;
export type Sort = (typeof SORTS)[number];
export const TABS = ["sandboxes", "tenants", "problems", "queue"] as const;
export type Tab = (typeof TABS)[number];
export const STATES = ["running", "starting", "stopped", "failed"] as const;

/** What the person wants to see; the address of the page holds it. */
export interface Wanted {
  tab: Tab;
  tenant: string;
  q: string;
  state: string;
  sort: Sort;
  descending: boolean;
  offset: number;
}

export const ROWS = 100;
/** The service says something at least every 15 seconds. */
const SILENT_MS = 45_000;

const oneOf = <T extends string>(all: readonly T[], value: string | null, otherwise: T): T =>
  all.find((each) => each === value) ?? otherwise;

export function readWanted(search: string, operator: boolean): Wanted {
  const asked = new URLSearchParams(search);
  const offset = Number(asked.get("offset") ?? "0");
  return {
    tab: oneOf(TABS, asked.get("tab"), "sandboxes"),
    tenant: operator ? (asked.get("tenant") ?? "*").slice(0, 64) || "*" : "",
    q: (asked.get("q") ?? "").slice(0, 200),
    state: oneOf(["", ...STATES], asked.get("state"), ""),
    sort: oneOf(SORTS, asked.get("sort"), "chat"),
    descending: asked.get("order") === "desc",
    offset: Number.isSafeInteger(offset) && offset > 0 ? Math.floor(offset / ROWS) * ROWS : 0,
  };
}

/** The part of a query that is not as it would be anyway. */
export function queryOf(wanted: Wanted, page: boolean): string {
  const query = new URLSearchParams();
  if (page && wanted.tab !== "sandboxes") query.set("tab", wanted.tab);
  if (wanted.tenant && !(page && wanted.tenant === "*")) query.set("tenant", wanted.tenant);
  if (wanted.q) query.set("q", wanted.q);
  if (wanted.state) query.set("state", wanted.state);
  if (wanted.sort !== "chat") query.set("sort", wanted.sort);
  if (wanted.descending) query.set("order", "desc");
  if (wanted.offset) query.set("offset", String(wanted.offset));
  if (!page) query.set("limit", String(ROWS));
  return query.toString();
}

/** A part of the overview; null for what is none. */
export function parsePart(text: string): Partial<Overview> | null {
  try {
    const value: unknown = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? (value as Partial<Overview>) : null;
  } catch {
    return null;
  }
}

export interface Problem {
  reason: string;
  signIn: boolean;
}

export class Feed {
  readonly overview = signal<Partial<Overview> | null>(null);
  readonly problem = signal<Problem | null>(null);
  readonly live = signal(false);
  /** Milliseconds that the service's clock is ahead of this one. */
  readonly ahead = signal(0);
  #query = "";
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  #silence: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 15_000);

  constructor(private readonly address: (query: string, events: boolean) => string) {}

  /** A page that is not seen has no connection. */
  start(): () => void {
    const follow = () => (document.visibilityState === "visible" ? this.#open() : this.#close());
    const lost = () => this.#fail("The service cannot be reached.", false);
    const back = () => {
      this.#close();
      follow();
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    addEventListener("offline", lost);
    addEventListener("online", back);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      removeEventListener("offline", lost);
      removeEventListener("online", back);
      this.#close();
    };
  }

  /** Show something else; what is seen stays until it has come. */
  ask(query: string): void {
    if (query === this.#query) return;
    this.#query = query;
    if (!this.#source && this.#again === undefined) return;
    this.#close();
    this.#open();
  }

  #open(): void {
    if (this.#source) return;
    clearTimeout(this.#again);
    this.#again = undefined;
    const source = new EventSource(this.address(this.#query, true));
    this.#source = source;
    this.#hear();
    source.onopen = () => {
      this.#pauses.reset();
      this.live.value = true;
      this.#hear();
    };
    source.onmessage = (message: MessageEvent<string>) => {
      const part = parsePart(message.data);
      if (part) this.take(part);
      this.#hear();
    };
    source.onerror = () => void this.#broken(source);
  }

  take(part: Partial<Overview>): void {
    if (typeof part.now === "number") this.ahead.value = part.now * 1000 - Date.now();
    this.overview.value = { ...this.overview.value, ...part };
    this.problem.value = null;
  }

  /** An event stream does not say why it ended: the plain request does. */
  async #broken(source: EventSource): Promise<void> {
    if (this.#source !== source) return;
    this.#close();
    const query = this.#query;
    this.#again = setTimeout(() => this.#open(), this.#pauses.next());
    try {
      const answer = await request(this.address(query, false));
      const part = parsePart(await answer.text());
      if (part && query === this.#query) this.take(part);
    } catch (error) {
      const status = error instanceof HttpError ? error.status : 0;
      const reason = error instanceof Error ? error.message : "The service cannot be reached.";
      this.#fail(reason, status === 401 || status === 403);
    }
  }

  #fail(reason: string, signIn: boolean): void {
    this.live.value = false;
    this.problem.value = { reason, signIn };
  }

  #hear(): void {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#close();
      this.#open();
    }, SILENT_MS);
  }

  #close(): void {
    clearTimeout(this.#again);
    clearTimeout(this.#silence);
    this.#again = undefined;
    this.#source?.close();
    this.#source = null;
    this.live.value = false;
  }
}
