/** The page's side of the worker: one of it, started when it is first needed, and again when it took too long. */
import type { Change } from "./linediff";
import type { TextRow } from "./printed";

export interface Printed {
  rows: readonly TextRow[];
  /** There were more rows than a terminal keeps: the first ones are missing. */
  cut: boolean;
}

export type Question =
  | { id: number; kind: "diff"; before: string; after: string }
  | { id: number; kind: "rows"; text: string };
export type Answer = { id: number; result: Change | Printed } | { id: number; problem: string };

const LIMIT_MS = 20_000;
const REMEMBERED = 100;

interface Asked {
  done: (result: Change | Printed | null) => void;
  timer: ReturnType<typeof setTimeout>;
}

class Work {
  #worker: Worker | null = null;
  #next = 0;
  readonly #asked = new Map<number, Asked>();
  readonly #known = new Map<string, Promise<Change | Printed | null>>();

  #start(): Worker {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Answer>) =>
      this.#settle(data.id, "result" in data ? data.result : null);
    worker.onerror = () => this.#giveUp();
    return worker;
  }

  #settle(id: number, result: Change | Printed | null): void {
    const asked = this.#asked.get(id);
    this.#asked.delete(id);
    clearTimeout(asked?.timer);
    asked?.done(result);
  }

  /** It hangs, or could not be loaded: whoever waits is told, and the next question starts another. */
  #giveUp(): void {
    this.#worker?.terminate();
    this.#worker = null;
    for (const id of [...this.#asked.keys()]) this.#settle(id, null);
  }

  #ask(question: Question): Promise<Change | Printed | null> {
    return new Promise((done) => {
      try {
        this.#worker ??= this.#start();
      } catch {
        done(null); // no workers here
        return;
      }
      this.#asked.set(question.id, { done, timer: setTimeout(() => this.#giveUp(), LIMIT_MS) });
      this.#worker.postMessage(question);
    });
  }

  /** An answer is kept under its key; of many, the latest. */
  #remember<T extends Change | Printed>(key: string, ask: (id: number) => Question): Promise<T | null> {
    let found = this.#known.get(key);
    if (found) this.#known.delete(key);
    else {
      this.#next += 1;
      found = this.#ask(ask(this.#next));
    }
    this.#known.set(key, found);
    if (this.#known.size > REMEMBERED) this.#known.delete(this.#known.keys().next().value as string);
    return found as Promise<T | null>;
  }

  diff(key: string, before: string, after: string): Promise<Change | null> {
    return this.#remember(`diff ${key}`, (id) => ({ id, kind: "diff", before, after }));
  }

  rows(key: string, text: string): Promise<Printed | null> {
    return this.#remember(`rows ${key}`, (id) => ({ id, kind: "rows", text }));
  }
}

export const work = new Work();
