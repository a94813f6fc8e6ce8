/** What changes on the home page, as the service tells it: one event stream, which comes back by itself. */
import { signal } from "@preact/signals";
import { Backoff } from "../common/backoff";
import { getJson, HttpError } from "../common/http";
import type { Home, HomePart } from "./home.generated";

/** The service says something at least every 20 seconds. */
const SILENT_MS = 60_000;

export function parsePart(text: string): HomePart | null {
  try {
    const value: unknown = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? (value as HomePart) : null;
  } catch {
    return null;
  }
}

export class HomeFeed {
  readonly home = signal<Partial<Home>>({});
  /** Why nothing comes; empty while all is well. */
  readonly problem = signal("");
  readonly signedOut = signal(false);
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  #silence: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 15_000);

  constructor(private readonly root: URL) {}

  /** A page that is not seen has no connection. */
  start(): () => void {
    const follow = () => (document.visibilityState === "visible" ? this.#open() : this.#close());
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      this.#close();
    };
  }

  take(part: HomePart): void {
    this.home.value = { ...this.home.value, ...part };
    this.problem.value = "";
  }

  #open(): void {
    if (this.#source) return;
    clearTimeout(this.#again);
    const source = new EventSource(new URL("api/home/events", this.root));
    this.#source = source;
    this.#hear();
    source.onopen = () => {
      this.#pauses.reset();
      this.problem.value = "";
    };
    source.onmessage = (message: MessageEvent<string>) => {
      const part = parsePart(message.data);
      if (part) this.take(part);
      this.#hear();
    };
    source.onerror = () => void this.#broken(source);
  }

  /** An event stream does not say why it ended: the plain request does. */
  async #broken(source: EventSource): Promise<void> {
    if (this.#source !== source) return;
    this.#close();
    this.#again = setTimeout(() => this.#open(), this.#pauses.next());
    try {
      this.take(await getJson<Home>(new URL("api/home", this.root).href));
    } catch (error) {
      const status = error instanceof HttpError ? error.status : 0;
      this.signedOut.value = status === 401 || status === 403;
      this.problem.value = error instanceof Error ? error.message : "The service cannot be reached.";
    }
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
    this.#source?.close();
    this.#source = null;
  }
}
