/** The calls of a chat, as far as the line needs them that says what the model does: for pages that show one panel. */
import { signal } from "@preact/signals";
import { Backoff } from "../common/backoff";
import type { NowCall } from "./nowline";

const MOST = 50;

type Told = Partial<Omit<NowCall, "state">> & { type?: string; id?: string; kind?: string; error?: boolean };

/** What is known after one more event of the stream. */
export function take(calls: readonly NowCall[], text: string): readonly NowCall[] {
  let told: Told;
  try {
    told = JSON.parse(text) as Told;
  } catch {
    return calls;
  }
  const { id, type } = told;
  if (typeof id !== "string") return calls;
  if (type === "service") {
    // Another service: those of its calls that go on are told again.
    return calls.filter((call) => call.state !== "running");
  }
  if (type === "call") {
    const begun: NowCall = {
      id,
      tool: String(told.tool ?? ""),
      description: typeof told.description === "string" ? told.description : "",
      arguments: told.arguments ?? {},
      at: Number(told.at) || 0,
      seconds: null,
      state: "running",
    };
    return [...calls.filter((call) => call.id !== id), begun].slice(-MOST);
  }
  if (type !== "end") return calls;
  const state = told.error ? "failed" : "done";
  return calls.map((call) =>
    call.id === id ? { ...call, state, seconds: Number(told.seconds) || 0 } : call,
  );
}

export class NowStream {
  readonly calls = signal<readonly NowCall[]>([]);
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 30_000);

  constructor(private readonly url: string) {}

  start(): () => void {
    const source = new EventSource(this.url);
    this.#source = source;
    source.onopen = () => this.#pauses.reset();
    source.onmessage = (message: MessageEvent<string>) => {
      this.calls.value = take(this.calls.peek(), message.data);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED)
        this.#again = setTimeout(() => this.start(), this.#pauses.next());
    };
    return () => {
      clearTimeout(this.#again);
      this.#source?.close();
    };
  }
}
