/** The chat's activity as it is told: one stream of events that is taken up again, and what was before it. */
import { signal } from "@preact/signals";
import type { EarlierCalls } from "../common/api.generated";
import { Backoff } from "../common/backoff";
import { getJson } from "../common/http";
import { Glances, stir } from "../common/stirring";
import { type Call, parseEvent } from "../workspace/calls";
import type { ActivityEvent } from "../workspace/events.generated";
import { CallLog } from "./log";

/** The tools that can start or end something that goes on when they are done. */
const STARTERS = new Set(["bash_tool", "sub_agent"]);
/** A page that nobody sees draws no frames. */
const LONGEST_WAIT_MS = 200;
/** The service tells at most so many calls, or about so many characters: with more, there may be earlier ones. */
const TOLD_CALLS = 250;

export type Past = "unknown" | "reading" | "more" | "all" | "failed";

export class Activity {
  readonly calls = signal<readonly Call[]>([]);
  readonly state = signal<"connecting" | "open" | "lost" | "none">("connecting");
  /** Whether there are earlier calls than those. */
  readonly past = signal<Past>("unknown");
  readonly #log = new CallLog();
  #drawing = false;
  #source: EventSource | null = null;
  /** The service that was last heard. */
  #service = "";
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 30_000);
  /** A busy model must not make the page ask without end. */
  readonly #stirs = new Glances(stir, 5_000);

  constructor(
    private readonly url: string,
    private readonly onEnd: () => void,
    private readonly earlierUrl: (before: string) => string = () => "",
  ) {}

  start(): void {
    const source = new EventSource(this.url);
    this.#source = source;
    source.onopen = () => {
      this.#pauses.reset();
      if (this.state.value === "lost") {
        stir();
        this.onEnd(); // what happened meanwhile was not seen
      }
      this.state.value = "open";
    };
    source.onmessage = (message: MessageEvent<string>) => {
      const event = parseEvent(message.data);
      if (event) this.#take(event);
    };
    source.onerror = () => {
      if (this.state.value === "open") stir();
      // A lost connection comes back by itself, from the last id on. An answer that is no stream ends it for good:
      // a proxy gives one while the service is started again.
      const over = source.readyState === EventSource.CLOSED;
      if (this.state.value === "connecting" && over) this.state.value = "none";
      else if (this.state.value !== "none") this.state.value = "lost";
      if (over) this.#again = setTimeout(() => this.start(), this.#pauses.next());
    };
  }

  stop(): void {
    clearTimeout(this.#again);
    this.#source?.close();
    this.#stirs.stop();
  }

  #take(event: ActivityEvent): void {
    if (event.type === "service") {
      if (event.id === this.#service) return;
      this.#service = event.id;
    }
    this.#log.apply(event);
    this.#draw();
    if (event.type === "end" || event.type === "undo") this.onEnd();
    if (event.type === "call" ? STARTERS.has(event.tool) : event.type === "end") this.#stirs.ask();
  }

  /** Thousands of events that come at once are shown at once. */
  #draw(): void {
    if (this.#drawing) return;
    this.#drawing = true;
    const show = () => {
      if (!this.#drawing) return;
      this.#drawing = false;
      this.calls.value = [...this.#log.calls];
      if (this.#log.dropped) this.past.value = "more";
    };
    requestAnimationFrame(show);
    setTimeout(show, LONGEST_WAIT_MS);
  }

  /** Whether a person who wants to see more is offered to look. */
  get mayHaveMore(): boolean {
    if (this.past.value === "unknown") return this.calls.value.length >= TOLD_CALLS;
    return this.past.value !== "all";
  }

  /** Read what was before the first call that is known. */
  async readEarlier(): Promise<void> {
    const first = this.#log.calls[0]?.id;
    if (!first || this.past.value === "reading" || this.past.value === "all") return;
    this.past.value = "reading";
    try {
      const { events, more } = await getJson<EarlierCalls>(this.earlierUrl(first));
      this.#log.dropped = false;
      this.#log.prepend(events as ActivityEvent[]);
      this.calls.value = [...this.#log.calls];
      this.past.value = more && !this.#log.dropped ? "more" : "all";
    } catch {
      this.past.value = "failed";
    }
  }
}
