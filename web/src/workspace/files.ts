/** The chat's files as a tree that is read folder by folder. */
import { signal } from "@preact/signals";
import type { EntryKind, FolderEntry, FolderListing, Root } from "../common/api.generated";
import { getJson, HttpError } from "../common/http";
import { type Addresses, decodePath } from "../common/page";

export type { EntryKind, Root };

export interface Entry {
  name: string;
  kind: EntryKind;
  size: number;
  modified: string;
  root: Root;
  /** Where the service has it, relative to the chat's files. */
  path: string;
  changed: boolean;
}

export const ROOTS: Root[] = ["outputs", "uploads", "workspace"];

/** An entry's own address tells its path best: two roots may hold the same name. */
export function pathOf(entry: FolderEntry, folder: string): string {
  const told = /\/files\/[^/]+\/([^?#]+)/.exec(entry.url)?.[1];
  if (told) return decodePath(told).replace(/\/$/, "");
  return folder ? `${folder.replace(/\/$/, "")}/${entry.name}` : entry.name;
}

export function sorted(entries: Entry[]): Entry[] {
  const order = new Intl.Collator(undefined, { numeric: true });
  return entries.toSorted(
    (a, b) =>
      Number(b.kind === "directory") - Number(a.kind === "directory") || order.compare(a.name, b.name),
  );
}

/** What was made last comes first, whether it is a file or a folder. */
export function newestFirst(entries: Entry[]): Entry[] {
  return entries.toSorted((a, b) => (a.modified < b.modified ? 1 : a.modified > b.modified ? -1 : 0));
}

/** A burst of tool calls is followed by one look at the files, and a long one by a look now and then. */
const QUIET_MS = 250;
const LONGEST_BURST_MS = 2000;

const keyOf = (root: Root | "", path: string) => `${root}:${path}`;

export class Files {
  /** Entries of each folder that was read; the top is "". */
  readonly folders = signal<ReadonlyMap<string, Entry[]>>(new Map());
  readonly open = signal<ReadonlySet<string>>(new Set());
  /** Folders of which not everything was listed. */
  readonly #partial = signal<ReadonlySet<string>>(new Set());
  readonly problem = signal("");
  readonly loading = signal(true);
  /** How often all of it was read. */
  readonly round = signal(0);
  readonly #times = new Map<string, Entry["modified"]>();
  #reading: Promise<void> | null = null;
  #again = false;
  #burst: { began: number; timer: ReturnType<typeof setTimeout> } | null = null;

  /** `asleep`: takes the error that says that the computer is stopped; what was read before then still holds. */
  constructor(
    private readonly addresses: Addresses,
    private readonly asleep: (error: unknown) => boolean = () => false,
  ) {}

  /** One reading at a time: whoever asks meanwhile gets one more, however many ask. */
  refresh(): Promise<void> {
    this.#again = true;
    this.#reading ??= this.#readWhileAsked().finally(() => {
      this.#reading = null;
    });
    return this.#reading;
  }

  /** For news that come in bursts, as a chat's past calls do when the page opens. */
  refreshSoon(): void {
    const now = performance.now();
    const began = this.#burst?.began ?? now;
    clearTimeout(this.#burst?.timer);
    const timer = setTimeout(
      () => {
        this.#burst = null;
        void this.refresh();
      },
      Math.min(QUIET_MS, began + LONGEST_BURST_MS - now),
    );
    this.#burst = { began, timer };
  }

  async #readWhileAsked(): Promise<void> {
    while (this.#again) {
      this.#again = false;
      await this.#readAll();
      this.round.value += 1;
    }
  }

  async #readAll(): Promise<void> {
    await this.#read("", "");
    for (const key of this.open.value) {
      const cut = key.indexOf(":");
      await this.#read(key.slice(0, cut) as Root, key.slice(cut + 1));
    }
  }

  top(root: Root): Entry[] {
    const all = (this.folders.value.get(keyOf("", "")) ?? []).filter((e) => e.root === root);
    return root === "outputs" ? newestFirst(all) : all;
  }

  below(entry: Entry): Entry[] | undefined {
    const all = this.folders.value.get(keyOf(entry.root, entry.path));
    return all && entry.root === "outputs" ? newestFirst(all) : all;
  }

  /** Whether there is more in a folder, or at the top, than is listed. */
  isPartial(entry?: Entry): boolean {
    return this.#partial.value.has(entry ? keyOf(entry.root, entry.path) : keyOf("", ""));
  }

  /** Where a link leads is known once it was followed. */
  isFolder(entry: Entry): boolean {
    return entry.kind === "directory" || (entry.kind === "symlink" && this.below(entry) !== undefined);
  }

  isLink(path: string): boolean {
    return [...this.folders.value.values()].flat().some((e) => e.path === path && e.kind === "symlink");
  }

  isOpen(entry: Entry): boolean {
    return this.open.value.has(keyOf(entry.root, entry.path));
  }

  toggle(entry: Entry): void {
    const key = keyOf(entry.root, entry.path);
    const open = new Set(this.open.value);
    if (open.delete(key)) {
      this.open.value = open;
      return;
    }
    open.add(key);
    this.open.value = open;
    void this.#read(entry.root, entry.path);
  }

  /** Opens a folder and those around it, in the root that it names or the first that has it: as the service looks. */
  reveal(path: string): void {
    const parts = path.split("/");
    const named = ROOTS.filter((root) => root === parts[0]).map((root) => [root, parts.slice(1)] as const);
    for (const [root, below] of [...named, ...ROOTS.map((root) => [root, parts] as const)]) {
      const top = this.top(root).find((e) => e.kind !== "file" && e.name === below[0]);
      if (!top) continue;
      const keys = below.map((_, i) => keyOf(root, [top.path, ...below.slice(1, i + 1)].join("/")));
      this.open.value = new Set([...this.open.value, ...keys]);
      void this.refresh();
      return;
    }
  }

  /** Every file that was seen so far, for search and for the palette. */
  known(): Entry[] {
    return [...this.folders.value.values()].flat().filter((e) => e.kind === "file");
  }

  async #read(root: Root | "", path: string): Promise<void> {
    try {
      const listing = await getJson<FolderListing>(this.addresses.listing(path));
      const entries = listing.entries
        .map((listed) => this.#entry(listed, root, path))
        .filter((entry) => !root || entry.root === root);
      this.folders.value = new Map(this.folders.value).set(keyOf(root, path), sorted(entries));
      this.#mark(keyOf(root, path), !listing.complete);
      this.problem.value = "";
    } catch (error) {
      if (this.asleep(error)) this.problem.value = "";
      // A chat that has no sandbox yet has no files either: that is no fault.
      else if (error instanceof HttpError && error.status === 404) {
        this.folders.value = new Map(this.folders.value).set(keyOf(root, path), []);
      } else this.problem.value = error instanceof Error ? error.message : "The files could not be read.";
    }
    this.loading.value = false;
  }

  #mark(key: string, partial: boolean): void {
    if (this.#partial.value.has(key) === partial) return;
    const marked = new Set(this.#partial.value);
    if (!marked.delete(key)) marked.add(key);
    this.#partial.value = marked;
  }

  #entry(listed: FolderEntry, root: Root | "", folder: string): Entry {
    const entry: Entry = {
      name: listed.name,
      kind: listed.kind,
      size: listed.size,
      modified: listed.modified,
      root: listed.root,
      path: pathOf(listed, folder),
      changed: false,
    };
    const key = keyOf(entry.root, entry.path);
    const before = this.#times.get(key);
    const firstLook = this.loading.value || !this.folders.value.has(keyOf(root, folder));
    entry.changed = entry.kind === "file" && !firstLook && before !== entry.modified;
    if (!entry.changed) this.#times.set(key, entry.modified);
    return entry;
  }

  /** The person looked at it: it is no news any more. */
  seen(path: string): void {
    for (const [folder, entries] of this.folders.value) {
      const entry = entries.find((e) => e.path === path && e.changed);
      if (!entry) continue;
      this.#times.set(keyOf(entry.root, entry.path), entry.modified);
      const next = entries.map((e) => (e === entry ? { ...e, changed: false } : e));
      this.folders.value = new Map(this.folders.value).set(folder, next);
    }
  }
}
