/** What the open path leads to; looked at again whenever the list of files was read. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { HttpError, request } from "../common/http";
import type { Addresses } from "../common/page";
import type { Files } from "./files";

export interface Opened {
  path: string;
  /** `asleep`: nobody knows, for the computer is stopped. */
  kind: "file" | "folder" | "missing" | "asleep";
  /** Another one whenever the file has changed. */
  version: string;
}

async function look(addresses: Addresses, path: string): Promise<Opened> {
  try {
    const { headers } = await request(addresses.file(path), { method: "HEAD" });
    const version = headers.get("etag") ?? headers.get("last-modified");
    // The listing of a folder has neither.
    return { path, kind: version === null ? "folder" : "file", version: version ?? "" };
  } catch (error) {
    // The answer to HEAD has no body that could say more than this.
    if (error instanceof HttpError && error.status === 409) return { path, kind: "asleep", version: "" };
    if (error instanceof HttpError && error.status === 404) return { path, kind: "missing", version: "" };
    throw error;
  }
}

const same = (a: Opened, b: Opened | null): boolean =>
  a.path === b?.path && a.kind === b.kind && a.version === b.version;

/** Null until the first answer. A file is read after it was looked at, so that no change falls between the two. */
export function useOpened(addresses: Addresses, path: string, files: Files): Opened | null {
  const opened = useSignal<Opened | null>(null);
  const turns = useRef({ asked: 0, taken: 0 });
  const revealed = useRef("");
  const round = files.round.value;
  useEffect(() => {
    turns.current.asked += 1;
    const turn = turns.current.asked;
    if (!path) {
      turns.current.taken = turn;
      opened.value = null;
      return;
    }
    const take = (found: Opened) => {
      if (turn < turns.current.taken) return; // a later question was answered first
      // What is on the screen stays there while the computer sleeps.
      if (found.kind === "asleep" && opened.value?.path === path && opened.value.kind === "file") return;
      // A folder is shown in the tree: it waits for the first list.
      if (same(found, opened.value) || (found.kind === "folder" && files.loading.value)) return;
      turns.current.taken = turn;
      opened.value = found;
      if (found.kind === "folder") files.reveal(path);
      else files.seen(path);
    };
    // An address that names a file shows where it lies, once: a folder that the person closes stays closed.
    const place = path.slice(0, path.lastIndexOf("/"));
    if (place && revealed.current !== path && !files.loading.value) {
      revealed.current = path;
      files.reveal(place);
    }
    look(addresses, path).then(take, () => {
      // Reading the file will tell what is wrong.
      if (opened.value?.path !== path) take({ path, kind: "file", version: "" });
    });
  }, [addresses, path, files, round]);
  return opened.value?.path === path ? opened.value : null;
}
