// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Root = "outputs" | "uploads" | "workspace";

export type Condition = "starting" | "running" | "stopped" | "failed" | "none";

export type EntryKind = "file" | "directory" | "symlink" | "other";

export interface Health {
  status: "healthy";
}

export interface ToolInfo {
  name: string;
  description: string;
}

export interface HeaderInfo {
  name: string;
  required: boolean;
  purpose: string;
}

export interface McpInfo {
  name: string;
  version: string;
  protocol_versions: string[];
  endpoint: string;
  tools: ToolInfo[];
  headers: HeaderInfo[];
}

/** RFC 9728. */
export interface ProtectedResource {
  resource: string;
  authorization_servers: string[];
  bearer_methods_supported: string[];
  resource_name: string;
  scopes_supported?: string[];
}

export interface SkillInfo {
  name: string;
  description: string;
  location: string;
  source: string;
}

export interface SkillList {
  skills: SkillInfo[];
}

export interface SkillMount {
  name: string;
  target: string;
  mode: "ro";
}

export interface SkillMounts {
  mounts: SkillMount[];
}

export interface DiskSpace {
  enough: boolean;
  short_since: string | null;
  free_bytes: number;
  floor_bytes: number;
  total_bytes: number;
  inodes_left: boolean;
}

export interface IsolationFinding {
  wall: string;
  attempt: string;
  verdict: string;
  said: string;
}

export interface IsolationReport {
  strength: string;
  holds: boolean;
  attempts: number;
  not_checked?: number;
  findings: IsolationFinding[];
  checked_at: string | null;
}

export interface UploadedFile {
  filename: string;
  path: string;
  size: number;
  sha256: string | null;
  uri: string;
  mimeType: string;
}

export interface UploadList {
  files: UploadedFile[];
  complete?: boolean;
}

export interface FolderEntry {
  name: string;
  kind: EntryKind;
  size: number;
  modified: string;
  root: Root;
  url: string;
}

export interface FolderListing {
  path: string;
  entries: FolderEntry[];
  complete: boolean;
}

export interface RawUrl {
  url: string;
  folder: string;
}

export interface TabRecord {
  id: string;
  title: string;
  url: string;
}

export interface BrowserStatus {
  running: boolean;
  pages: TabRecord[];
  sandbox: Condition;
}

export interface ProgramStarted {
  running: boolean;
  started: boolean;
}

export interface TerminalStatus {
  running: boolean;
  port: number;
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

export interface SessionList {
  sessions: SessionRecord[];
}

export interface SessionResumed {
  resumed: boolean;
  session_id: string;
}

export interface ProcessRecord {
  pid: number;
  command: string;
  started_at: string;
  cpu_seconds: number;
  memory_bytes: number;
}

export interface ProcessList {
  processes: ProcessRecord[];
}

export interface ProcessKilled {
  killed: boolean;
  pid: number;
}

export interface EarlierCalls {
  events: unknown[];
  more: boolean;
}

export interface ChangeSide {
  hash: string;
  text: string | null;
}

export interface FileSides {
  path: string;
  sides: ChangeSide[];
}

export interface FileUndone {
  path: string;
  undone: boolean;
  size: number | null;
}

export interface SandboxState {
  sandbox: Condition;
}

/** One receiver of webhooks. */
export interface WebhookReceiver {
  name: string;
  host: string;
  events: string[];
  tenants: string[];
  waiting: number;
  dead: number;
  failing: string;
}

/** A message that was given up. */
export interface WebhookLetter {
  id: string;
  type: string;
  tenant: string;
  at: number;
  receiver: string;
  attempts: number;
  error: string;
}

export interface WebhookOverview {
  receivers: WebhookReceiver[];
  dead: WebhookLetter[];
  dropped: number;
}

export interface WebhooksRetried {
  retried: number;
}

export interface SandboxStopped {
  stopped: boolean;
  chat: string;
}

/** One line of the operator's table. Without the last five when the sandbox does not answer. */
export interface SandboxRow {
  chat: string;
  tenant: string;
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

export interface TrashRow {
  chat: string;
  tenant: string;
  removed_at: number;
  reason: string;
  disk_bytes: number | null;
}

export interface SandboxTotals {
  sandboxes: number;
  running: number;
  in_trash?: number;
  MB_in_trash?: number;
}

export interface SandboxList {
  sandboxes: SandboxRow[];
  trash: TrashRow[];
  totals: SandboxTotals;
}

/** A link that was made by hand. `url` is in the answer to its making, and nowhere else. */
export interface ChatLink {
  id: string;
  access: string;
  label: string;
  created: number;
  expires: number;
  opens: string;
  path: string;
  url?: string;
}

export interface ChatLinkList {
  links: ChatLink[];
}

/** A picture of the chat's browser: when it was taken, and of what. */
export interface FrameRecord {
  id: string;
  at: number;
  width: number;
  height: number;
  url: string;
  title: string;
}

/** One entry. `call` is the id that the beginning and the end of a call share. */
export interface Step {
  n: number;
  at: number;
  kind: string;
  call?: string;
  tool?: string;
  title?: string;
  text?: string;
  error?: boolean;
  exit_code?: number | null;
  seconds?: number;
  user?: string;
}

/** A part of what was done in a chat. The pictures come with the last part. */
export interface Timeline {
  entries: Step[];
  next: number;
  more: boolean;
  frames: FrameRecord[];
}

/** It signs one browser in, within so many seconds. */
export interface SignInLink {
  url: string;
  seconds: number;
}

/** A public link, and when it ends, in seconds since 1970. */
export interface PortShared {
  url: string;
  expires: number;
}

/** A port that a program listens on, or that is shared. */
export interface PortRecord {
  port: number;
  process: string;
  address: string;
  open: boolean;
  url: string;
  link: string;
  public: PortShared | null;
}

export interface PortOverview {
  ports: PortRecord[];
  sharing: boolean;
  note: string;
  browser: boolean;
  terminal: boolean;
  sandbox: string;
  services: string[];
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
  issuer: string;
  view: boolean;
  operator: boolean;
  tenant: string;
  opens: string;
  card: boolean;
  signed_in: boolean;
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

export interface TranscriptRecord {
  session_id: string;
  entries: TranscriptEntry[];
  next: number | null;
}
