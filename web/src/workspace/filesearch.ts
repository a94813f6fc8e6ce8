/** A search over the names and contents of all files, done by the service; its results as they come. */
import { signal } from "@preact/signals";
import type { FoundFile, FoundText, SearchEnd } from "../common/files.generated";
import { forPeople } from "../common/format";
import { isAsleep, request } from "../common/http";
import type { Addresses } from "../common/page";

const QUIET_MS = 250;
const LIMIT_MS = 60_000;
const LEAST = 2;

export interface FoundIn {
  path: string;
  lines: FoundText[];
}

export interface Results {
  names: FoundFile[];
  texts: FoundIn[];
  state: "none" | "searching" | "done" | "asleep" | "failed";
  complete: boolean;
  problem: string;
}

const NOTHING: Results = { names: [], texts: [], state: "none", complete: true, problem: "" };

export function parseLine(line: string): FoundFile | FoundText | SearchEnd | null {
  try {
    const value: unknown = JSON.parse(line);
    return value && typeof value === "object" && "type" in value
      ? (value as FoundFile | FoundText | SearchEnd)
      : null;
  } catch {
    return null;
  }
}

/** The results with one more line of the answer. */
export function withLine(results: Results, line: FoundFile | FoundText | SearchEnd): Results {
  if (line.type === "end") return { ...results, state: "done", complete: line.complete };
  if (line.type === "name") return { ...results, names: [...results.names, line] };
  const at = results.texts.findIndex((found) => found.path === line.path);
  if (at < 0) return { ...results, texts: [...results.texts, { path: line.path, lines: [line] }] };
  const texts = results.texts.map((found, i) =>
    i === at ? { ...found, lines: [...found.lines, line] } : found,
  );
  return { ...results, texts };
}

export class FileSearch {
  readonly text = signal("");
  readonly results = signal<Results>(NOTHING);
  #stop: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly addresses: Addresses) {}

  get active(): boolean {
    return this.text.value.trim().length >= LEAST;
  }

  /** What the person typed: the search begins a moment later, and ends the one before it. */
  type(text: string): void {
    this.text.value = text;
    clearTimeout(this.#timer);
    this.#stop?.abort();
    if (!this.active) {
      this.results.value = NOTHING;
      return;
    }
    this.results.value = { ...NOTHING, state: "searching" };
    this.#timer = setTimeout(() => void this.run(false), QUIET_MS);
  }

  /** `wake`: the person wants a computer that sleeps to be started for it. */
  async run(wake: boolean): Promise<void> {
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    const take = (results: Results) => {
      if (this.#stop === stop) this.results.value = results;
    };
    let results: Results = { ...NOTHING, state: "searching" };
    take(results);
    try {
      const url = this.addresses.search(this.text.value.trim(), wake);
      const response = await request(url, { signal: stop.signal }, LIMIT_MS);
      for await (const line of linesOf(response)) {
        const parsed = parseLine(line);
        if (parsed) results = withLine(results, parsed);
        take(results);
      }
      if (results.state === "searching") take({ ...results, state: "done", complete: false });
    } catch (error) {
      if (stop.signal.aborted) return;
      if (isAsleep(error)) take({ ...results, state: "asleep", problem: forPeople(error.message) });
      else
        take({ ...results, state: "failed", problem: error instanceof Error ? error.message : "It failed." });
    }
  }
}

async function* linesOf(response: Response): AsyncGenerator<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    yield* lines.filter(Boolean);
  }
  if (rest) yield rest;
}
