/** How long to wait before the next attempt: doubling, with jitter so that many pages do not return at once. */
export class Backoff {
  #attempt = 0;

  constructor(
    private readonly first = 500,
    private readonly most = 15_000,
    private readonly random: () => number = Math.random,
  ) {}

  get attempt(): number {
    return this.#attempt;
  }

  next(): number {
    const whole = Math.min(this.most, this.first * 2 ** this.#attempt);
    this.#attempt += 1;
    return Math.round(whole * (0.75 + this.random() * 0.25));
  }

  reset(): void {
    this.#attempt = 0;
  }
}
