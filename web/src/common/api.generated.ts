// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Root = "outputs" | "uploads" | "workspace";

export type EntryKind = "file" | "directory" | "symlink" | "other";

export type Condition = "starting" | "running" | "stopped" | "failed" | "none";

/** GET /terminal/<chat>/status */
export interface TerminalStatus {
  running: boolean;
  port: number;
  sandbox: Condition;
}

export interface TabRecord {
  id: string;
  title: string;
  url: string;
}

/** GET /browser/<chat>/status */
export interface BrowserStatus {
  running: boolean;
  pages: TabRecord[];
  sandbox: Condition;
}

export interface SessionRecord {
  session_id: string;
  agent: string;
  started_at: string;
  updated_at: string;
  model: string;
  turns: number;
  title: string;
}

/** GET /terminal/<chat>/sessions */
export interface SessionList {
  sessions: SessionRecord[];
}

export interface ProcessRecord {
  pid: number;
  command: string;
  started_at: string;
  cpu_seconds: number;
  memory_bytes: number;
}

/** GET /terminal/<chat>/processes */
export interface ProcessList {
  processes: ProcessRecord[];
}

/** One entry of a listing; `url` is relative to the root of the service or absolute, as the service is set up. */
export interface FileEntry {
  name: string;
  kind: EntryKind;
  size: number;
  modified: string;
  root: Root;
  url: string;
}

/** GET /files/<chat>/ and every folder below it */
export interface FileListing {
  path: string;
  entries: FileEntry[];
  complete: boolean;
}

/** POST /api/chats/<chat>/raw/<path>: `folder` is what the page can read; empty: all of the chat */
export interface RawGrant {
  url: string;
  folder: string;
}

/** POST /api/uploads/<chat>/<name> */
export interface UploadRecord {
  filename: string;
  path: string;
  size: number;
  sha256: string | null;
  uri: string;
  mimeType: string;
}

/** GET /api/uploads/<chat> */
export interface UploadList {
  files: UploadRecord[];
  complete?: false;
}

/** One sandbox; what it uses is there only while it can be asked. */
export interface SandboxRow {
  chat: string;
  state: Condition;
  reason: string;
  age_seconds: number | null;
  idle_seconds: number;
  connections: number;
  user: string;
  last_tool: string;
  cpu_seconds?: number | null;
  cpu_percent?: number | null;
  memory_bytes?: number | null;
  disk_bytes?: number | null;
  processes?: number | null;
}

/** One removed sandbox. */
export interface TrashRow {
  chat: string;
  removed_at: number;
  reason: string;
  disk_bytes: number | null;
}

/** The last two come when there is something in the trash. */
export interface Totals {
  sandboxes: number;
  running: number;
  in_trash?: number;
  MB_in_trash?: number;
}

/** GET /api/sandboxes */
export interface SandboxTable {
  sandboxes: SandboxRow[];
  trash: TrashRow[];
  totals: Totals;
}

/** What every page is given with its HTML, as the `data-page` of its body. */
export interface PageData {
  root: string;
  assets: string;
  chat: string;
  path: string;
  raw: string;
  sandbox: string;
  embed: boolean;
  run: boolean;
  next: string;
  message: string;
  locked: boolean;
}

export interface TranscriptPart {
  kind: "text" | "thinking" | "tool" | "result";
  text: string;
  cut: boolean;
}

export interface TranscriptEntry {
  role: "user" | "assistant" | "system" | "summary";
  at: string;
  parts: TranscriptPart[];
}

export interface TranscriptPage {
  session_id: string;
  entries: TranscriptEntry[];
  next: number | null;
}
