/** Something began or ended in the sandbox, and this page caused or saw it: whoever shows what runs there looks again. */
import { signal } from "@preact/signals";

export const stirrings = signal(0);

export function stir(): void {
  stirrings.value = stirrings.peek() + 1;
}

/** Calls `look` now, and at most so often, whatever comes; what came meanwhile is looked at in the end. */
export class Glances {
  #last = Number.NEGATIVE_INFINITY;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly look: () => void,
    private readonly gap: number,
  ) {}

  ask(): void {
    if (this.#timer !== undefined) return;
    const wait = this.#last + this.gap - Date.now();
    if (wait > 0) this.#timer = setTimeout(() => this.#glance(), wait);
    else this.#glance();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #glance(): void {
    this.stop();
    this.#last = Date.now();
    this.look();
  }
}
