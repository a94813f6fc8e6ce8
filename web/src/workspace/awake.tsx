/** Whether the chat's computer is up, for all panels: what they ask for does not start it, and this says so. */
import { type ReadonlySignal, signal } from "@preact/signals";
import { forPeople } from "../common/format";
import { isAsleep, post } from "../common/http";
import type { Addresses } from "../common/page";
import { AsleepNotice, Empty, UNMADE } from "../ui/parts";
import { toast } from "../ui/toast";

const START_LIMIT_MS = 120_000;

export class Awake {
  readonly #state = signal("");
  readonly #reason = signal("");
  readonly #busy = signal(false);

  /** `first`: what the page was told; `onUp`: the computer came up after it was down. */
  constructor(
    private readonly addresses: Addresses,
    first: string,
    private readonly onUp: () => void,
  ) {
    this.#state.value = first;
  }

  get busy(): ReadonlySignal<boolean> {
    return this.#busy;
  }
  get reason(): string {
    return this.#reason.value;
  }
  get made(): boolean {
    return this.#state.value !== "none";
  }
  get down(): boolean {
    return ["stopped", "failed", "none"].includes(this.#state.value);
  }

  /** Somebody looked: this is its state now. */
  note(state: string): void {
    const before = this.down;
    this.#state.value = state;
    if (!this.down) this.#reason.value = "";
    if (before && state === "running") this.onUp();
  }

  /** True when this error says that the computer is stopped. */
  takes(error: unknown): boolean {
    if (!isAsleep(error)) return false;
    this.#reason.value = forPeople(error.message);
    this.note("stopped");
    return true;
  }

  /** A person wants it up. */
  readonly start = async (): Promise<void> => {
    if (this.#busy.value) return;
    this.#busy.value = true;
    try {
      await post(this.addresses.start(), START_LIMIT_MS);
      this.note("running");
    } catch (error) {
      toast(error instanceof Error ? error.message : "It could not be started.");
    }
    this.#busy.value = false;
  };
}

/** In a panel that cannot show all while the computer is down. */
export function DownNotice({ awake }: { awake: Awake }) {
  if (!awake.down) return null;
  return (
    <AsleepNotice
      made={awake.made}
      reason={awake.reason}
      busy={awake.busy.value}
      onStart={() => void awake.start()}
    />
  );
}

/** In the place of a file. */
export function DownFile({ awake }: { awake: Awake }) {
  return (
    <Empty icon="moon" title={awake.made ? "This computer sleeps" : "There is no computer yet"}>
      <p role="status">
        {awake.made ? awake.reason || "Its files are kept. To read this one, it has to be woken." : UNMADE}
      </p>
      <button type="button" class="primary" disabled={awake.busy.value} onClick={() => void awake.start()}>
        {awake.busy.value ? "Starting…" : awake.made ? "Wake it" : "Start one now"}
      </button>
    </Empty>
  );
}
