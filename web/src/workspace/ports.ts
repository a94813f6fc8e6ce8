/** Which ports of the sandbox are open, followed while the page is seen. */
import { computed, type ReadonlySignal, signal } from "@preact/signals";
import type { PortOverview, PortRecord } from "../common/api.generated";
import { Backoff } from "../common/backoff";
import { shownName } from "../common/format";

const NONE: PortOverview = {
  ports: [],
  sharing: false,
  note: "",
  browser: false,
  terminal: false,
  sandbox: "",
  services: [],
};
/** The names by which a browser on the service's own machine calls it. */
const LOCAL = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\]|.*\.localhost)$/;

export function parseOverview(text: string): PortOverview | null {
  try {
    const value: unknown = JSON.parse(text);
    const ports = (value as PortOverview | null)?.ports;
    return Array.isArray(ports) ? (value as PortOverview) : null;
  } catch {
    return null;
  }
}

/** What a port is called: its number, and the program behind it. */
export const titleOf = (port: PortRecord): string => `${port.port} ${shownName(port.process)}`.trimEnd();

/** The link to a port with another path; a full address of another site is none. */
export function linkTo(port: PortRecord, path: string): string {
  const link = new URL(port.link);
  const key = link.searchParams.get("cubicle-key");
  // Resolved on the port's own address, a path cannot lead to another host.
  const target = new URL(`/${path.replace(/^[/\\]+/, "")}`, link);
  if (key !== null) target.searchParams.set("cubicle-key", key);
  return target.href;
}

/** What the address bar shows: the plain address, without anything that opens the port. */
export const plainAddress = (port: PortRecord, path: string): string =>
  new URL(`/${path.replace(/^[/\\]+/, "")}`, port.url).href;

/** The path of what somebody typed: a path, or a whole address of this port. */
export function typedPath(port: PortRecord, typed: string): string {
  const text = typed.trim();
  const own = port.url.replace(/\/$/, "");
  const rest = text.startsWith(own) ? text.slice(own.length) : text;
  return rest.replace(/^[/\\]+/, "");
}

/** An address as a program prints it: `localhost:3000/x`, `http://0.0.0.0:3000/x`, or only `:3000/x`. */
const PRINTED =
  /^(?:https?:\/\/)?(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\]|(?=:))(?::(\d{1,5}))?(?:[/\\](.*))?$/i;

/** Where what somebody typed leads to: a port with a path. Null for an address of another site. */
export function typedTarget(
  ports: readonly PortRecord[],
  current: PortRecord,
  typed: string,
): { port: number; path: string } | null {
  const text = typed.trim();
  for (const port of [current, ...ports])
    if (text.startsWith(port.url.replace(/\/$/, ""))) return { port: port.port, path: typedPath(port, text) };
  const printed = PRINTED.exec(text);
  if (printed) return { port: Number(printed[1] ?? current.port), path: printed[2] ?? "" };
  if (/^\d{2,5}$/.test(text) && ports.some((port) => port.port === Number(text)))
    return { port: Number(text), path: "" };
  if (/^[a-z][a-z\d+.-]*:\/\//i.test(text)) return null;
  return { port: current.port, path: typedPath(current, text) };
}

/** Whether this browser can reach the addresses: without a domain, only one on the service's own machine can. */
export const isReachable = (note: string, host: string): boolean => note === "" || LOCAL.test(host);

export class Ports {
  readonly #overview = signal<PortOverview>(NONE);
  readonly chosen = signal<number | null>(null);
  /** The path that a port is to be opened with, once. */
  readonly wanted = signal<{ port: number; path: string } | null>(null);
  readonly shown: ReadonlySignal<PortRecord | null>;
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 30_000);

  constructor(private readonly url: string) {
    this.shown = computed(() => {
      const { ports } = this.#overview.value;
      const chosen = ports.find((port) => port.port === this.chosen.value);
      return chosen ?? ports.find((port) => port.open) ?? ports[0] ?? null;
    });
  }

  get overview(): ReadonlySignal<PortOverview> {
    return this.#overview;
  }

  take(overview: PortOverview): void {
    this.#overview.value = overview;
  }

  /** A browser has few connections to one host: a page that is not seen has none for this. */
  start(): () => void {
    const follow = () => {
      if (document.visibilityState === "visible") this.#open();
      else this.#close();
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      this.#close();
    };
  }

  #open(): void {
    if (this.#source) return;
    const source = new EventSource(this.url);
    this.#source = source;
    source.onopen = () => this.#pauses.reset();
    source.onmessage = (message: MessageEvent<string>) => {
      const overview = parseOverview(message.data);
      if (overview) this.take(overview);
    };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      this.#close();
      this.#again = setTimeout(() => this.#open(), this.#pauses.next());
    };
  }

  #close(): void {
    clearTimeout(this.#again);
    this.#source?.close();
    this.#source = null;
  }
}
