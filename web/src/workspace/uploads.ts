/** Files on their way to the chat: a few at a time, each with its progress and a way to stop it. */
import { type Signal, signal } from "@preact/signals";
import type { Addresses } from "../common/page";
import { sendFile } from "../common/upload";

const AT_ONCE = 3;

/** The name that browsers give to every picture that is pasted: one would take the place of the other. */
const PASTED_PICTURE = /^image\.\w+$/i;

function nameOf(file: File, pasted: boolean, id: number): string {
  const name = file.webkitRelativePath || file.name;
  if (name && !(pasted && PASTED_PICTURE.test(name))) return name;
  return `pasted-${Date.now()}-${id}${name.slice(name.lastIndexOf("."))}`;
}

export interface Upload {
  id: number;
  name: string;
  size: number;
  share: Signal<number>;
  state: Signal<"waiting" | "sending" | "done" | "cancelled" | "failed">;
  problem: Signal<string>;
}

export class Uploads {
  readonly all = signal<Upload[]>([]);
  readonly #waiting: { upload: Upload; file: Blob }[] = [];
  readonly #cancels = new Map<number, AbortController>();
  #active = 0;
  #last = 0;

  constructor(
    private readonly addresses: Addresses,
    private readonly onDone: () => void,
  ) {}

  add(files: Iterable<File>, pasted = false): void {
    for (const file of files) {
      this.#last += 1;
      const upload: Upload = {
        id: this.#last,
        name: nameOf(file, pasted, this.#last),
        size: file.size,
        share: signal(0),
        state: signal("waiting"),
        problem: signal(""),
      };
      this.all.value = [...this.all.value, upload];
      this.#waiting.push({ upload, file });
    }
    this.#next();
  }

  cancel(upload: Upload): void {
    if (upload.state.value === "waiting") upload.state.value = "cancelled";
    this.#cancels.get(upload.id)?.abort();
  }

  clear(): void {
    this.all.value = this.all.value.filter((u) => u.state.value === "waiting" || u.state.value === "sending");
  }

  #next(): void {
    while (this.#active < AT_ONCE) {
      const job = this.#waiting.shift();
      if (!job) return;
      if (job.upload.state.value === "waiting") void this.#send(job.upload, job.file);
    }
  }

  async #send(upload: Upload, file: Blob): Promise<void> {
    const cancel = new AbortController();
    this.#cancels.set(upload.id, cancel);
    this.#active += 1;
    upload.state.value = "sending";
    try {
      const progress = (share: number) => {
        upload.share.value = share;
      };
      await sendFile(this.addresses.upload(upload.name), file, progress, cancel.signal);
      upload.share.value = 1;
      upload.state.value = "done";
      this.onDone();
    } catch (error) {
      upload.state.value = cancel.signal.aborted ? "cancelled" : "failed";
      upload.problem.value = error instanceof Error ? error.message : "";
    } finally {
      this.#active -= 1;
      this.#cancels.delete(upload.id);
      this.#next();
    }
  }
}
