/** The calls of a chat in their order, found by id: an event costs the same whether there are ten or ten thousand. */
import { type Call, callOf, changed, lost, noted } from "../workspace/calls";
import type { ActivityEvent } from "../workspace/events.generated";

export const MOST_CALLS = 20_000;
/** Characters of all of them. */
const MOST_TEXT = 48_000_000;
/** Above a limit, so much of it goes at once. */
const SHARE = 0.1;

const weight = (call: Call): number => {
  let size = 500 + call.output.length * 2 + call.result.length;
  for (const value of Object.values(call.arguments)) size += value.length;
  for (const step of call.steps) size += 200 + step.text.length;
  for (const file of call.files) size += (file.text_before?.length ?? 0) + (file.text_after?.length ?? 0);
  return size;
};

export class CallLog {
  calls: Call[];
  /** The oldest ones made room: they can be read again. */
  dropped = false;
  readonly #at = new Map<string, number>();
  #size = 0;

  constructor(
    calls: readonly Call[] = [],
    private readonly most = MOST_CALLS,
    private readonly mostText = MOST_TEXT,
  ) {
    this.calls = [...calls];
    this.#index();
  }

  #index(): void {
    this.#at.clear();
    this.#size = 0;
    this.calls.forEach((call, i) => {
      this.#at.set(call.id, i);
      this.#size += weight(call);
    });
  }

  apply(event: ActivityEvent): void {
    if (event.type === "service") {
      this.calls = this.calls.map(lost);
      return;
    }
    const at = this.#at.get(event.id);
    const before = at === undefined ? undefined : this.calls[at];
    if (at !== undefined && before) {
      if (event.type === "note") return;
      const after = changed(before, event);
      this.calls[at] = after;
      this.#size += weight(after) - weight(before);
    } else if (event.type === "call" || event.type === "note") {
      const added = event.type === "call" ? callOf(event) : noted(event);
      this.#at.set(event.id, this.calls.length);
      this.calls.push(added);
      this.#size += weight(added);
    }
    if (this.calls.length > this.most || this.#size > this.mostText) this.#drop();
  }

  /** Those that end first go first; the last one stays, whatever it weighs. */
  #drop(): void {
    const most = this.calls.length > this.most ? this.most * (1 - SHARE) : this.most;
    const mostText = this.#size > this.mostText ? this.mostText * (1 - SHARE) : this.mostText;
    let count = 0;
    let size = this.#size;
    while (count < this.calls.length - 1 && (this.calls.length - count > most || size > mostText)) {
      size -= weight(this.calls[count] as Call);
      count += 1;
    }
    this.calls = this.calls.slice(count);
    this.dropped = true;
    this.#index();
  }

  /** What was before all of these; what is known already is passed over. Of too many, the latest are taken. */
  prepend(events: readonly ActivityEvent[]): void {
    const earlier = new CallLog([], this.most, this.mostText);
    for (const event of events) if (event.type === "service" || !this.#at.has(event.id)) earlier.apply(event);
    const room = this.most - this.calls.length;
    if (room <= 0 || this.#size + earlier.#size > this.mostText) {
      this.dropped = true;
      return;
    }
    this.calls = [...earlier.calls.slice(-room), ...this.calls];
    this.#index();
  }
}

export function apply(calls: readonly Call[], event: ActivityEvent): readonly Call[] {
  const log = new CallLog(calls);
  log.apply(event);
  return log.calls;
}
