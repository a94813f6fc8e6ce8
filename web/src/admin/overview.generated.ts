// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type Condition = "starting" | "running" | "stopped" | "failed" | "none";

export type ProblemKind = "call" | "egress" | "quota" | "load";

/** One row of the table. Times are in seconds since 1970. */
export interface SandboxShown {
  chat: string;
  tenant: string;
  state: Condition;
  reason: string;
  since: number | null;
  idle_since: number | null;
  connections: number;
  user: string;
  last_tool: string;
  errors: number;
  cpu_percent: number | null;
  memory_bytes: number | null;
  disk_bytes: number | null;
}

export interface SandboxPage {
  rows: SandboxShown[];
  offset: number;
  matching: number;
  total: number;
}

export interface LastHour {
  calls: number;
  errors: number;
  outcomes: Record<string, number>;
  egress_allowed: number;
  egress_denied: number;
  egress_failed: number;
  refused: number;
  shed: number;
}

export interface QueuedStart {
  chat: string;
  tenant: string;
  user: string;
  position: number;
  since: number;
}

export interface IsolationState {
  strength: string;
  holds: boolean;
  checked_at: number | null;
  missing: string[];
  not_checked: number;
}

/** What concerns the whole service, for operators. `cubicle_…` are the names in /metrics. */
export interface HostNumbers {
  pool_ready: number;
  pool_size: number;
  disk_free: number;
  disk_floor: number;
  websockets: number;
  lag_ms: number;
  http_5xx: number;
  audit: "off" | "written" | "failing";
  webhooks: boolean;
  webhooks_waiting: number;
  webhooks_dead: number;
  counters: Record<string, number>;
}

/** Of the tenant, or of all. */
export interface ServiceNumbers {
  sandboxes: Record<string, number>;
  leases: number;
  calls_running: number;
  last_hour: LastHour;
  waiting: number;
  queue: QueuedStart[];
  in_trash: number;
  trash_bytes: number;
  host?: HostNumbers;
  isolation?: IsolationState;
}

export interface QuotaUse {
  limit: string;
  used: number;
  most: number;
}

/** What coding agents have spent; 0 is no limit. */
export interface BudgetUse {
  dollars: number;
  most_dollars: number;
  requests: number;
  most_requests: number;
  tokens: number;
  most_tokens: number;
}

/** One tenant. Calls, errors, denials and refusals are those of the last hour. */
export interface TenantShown {
  tenant: string;
  sandboxes: number;
  running: number;
  waiting: number;
  calls: number;
  errors: number;
  denied: number;
  refused: number;
  quotas: QuotaUse[];
  budget: BudgetUse;
}

export interface TenantList {
  rows: TenantShown[];
  total: number;
}

/** Something that went wrong in a chat, `count` times between two moments. */
export interface ProblemShown {
  tenant: string;
  chat: string;
  kind: ProblemKind;
  detail: string;
  since: number;
  at: number;
  count: number;
}

/** Counts over time; the last one is of the step that is under way. */
export interface Series {
  end: number;
  step: number;
  calls: number[];
  errors: number[];
  denied: number[];
  refused: number[];
}

export interface HistoryShown {
  hour: Series;
  day?: Series;
}

/** The admin page. An event of the stream has `now`, and those of the others that changed. */
export interface Overview {
  now: number;
  service: ServiceNumbers;
  tenants: TenantList;
  problems: ProblemShown[];
  history: HistoryShown;
  sandboxes: SandboxPage;
}
