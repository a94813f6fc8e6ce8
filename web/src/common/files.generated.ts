// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Root = "outputs" | "uploads" | "workspace";

export type Done = "created" | "changed" | "uploaded" | "renamed" | "deleted";

export type EntryKind = "file" | "directory" | "symlink" | "other";

/** One line of the answer to a search: a name that fits. */
export interface FoundFile {
  type: "name";
  root: Root;
  path: string;
  kind: EntryKind;
  size: number;
  modified: string;
}

/** One line of the answer to a search: a line of a file that holds the text. */
export interface FoundText {
  type: "line";
  root: Root;
  path: string;
  line: number;
  text: string;
}

/** The last line of the answer to a search. `complete`: there is nothing else. */
export interface SearchEnd {
  type: "end";
  complete: boolean;
}

/** `etag` is empty if the file was changed again at once. `id` undoes the change; empty: nothing does. */
export interface SavedFile {
  path: string;
  size: number;
  etag: string;
  id: string;
}

export interface RenamedFile {
  path: string;
}

/** What was done with one file. `path` is the one in the sandbox, `shown` opens it (empty: it cannot be opened). */
export interface FileChangeRecord {
  id: string;
  at: number;
  by: "model" | "person";
  tool: string;
  done: "created" | "changed" | "uploaded" | "renamed" | "deleted";
  path: string;
  shown: string;
  to: string;
  size_before: number;
  size_after: number;
  kept: boolean;
  undone: boolean;
  line: number;
  text_before: string | null;
  text_after: string | null;
}

/** A file that was written in the time that was asked for, by whatever program. */
export interface WrittenFile {
  root: Root;
  path: string;
  size: number;
  modified: string;
}

/** The newest first. `files` is null while the sandbox is stopped: only the journal is known then. */
export interface FileChanges {
  changes: FileChangeRecord[];
  files: WrittenFile[] | null;
  complete: boolean;
}

/** The file as it was before the change `id`, which was made at this time, if that is known. */
export interface FileVersion {
  id: string;
  size: number;
  at: number | null;
  by: "model" | "person" | "";
  tool: string;
}

export interface FileVersionList {
  versions: FileVersion[];
}

/** An event of a file that is followed. `reset`: it begins anew. `stopped`: why nothing more comes; else empty. */
export interface TailPiece {
  start: number;
  text: string;
  size: number;
  reset: boolean;
  stopped: string;
}
