/** The numbers of the admin page in words. */

import { bytes, seconds, shownName } from "../common/format";
import type { BudgetUse, ProblemShown, QuotaUse, Series, ServiceNumbers } from "./overview.generated";

export interface Card {
  title: string;
  value: string;
  more: string;
  tone: "" | "ok" | "warn" | "bad";
}

export const count = (value: number): string => value.toLocaleString("en");
const plain = (name: string): string => shownName(name).replaceAll("_", " ");

/** A time span in whole seconds. */
export function span(value: number): string {
  const whole = Math.max(0, Math.round(value));
  return whole < 60 ? `${whole} s` : seconds(whole);
}

function counted(all: Record<string, number>, but: string[] = []): string {
  return Object.entries(all)
    .filter(([name, value]) => value > 0 && !but.includes(name))
    .sort(([, a], [, b]) => b - a)
    .map(([name, value]) => `${count(value)} ${plain(name)}`)
    .join(" · ");
}

function sandboxes(now: ServiceNumbers): Card {
  const { running = 0, failed = 0 } = now.sandboxes;
  const more = counted(now.sandboxes, ["running"]);
  return { title: "Sandboxes", value: `${count(running)} running`, more, tone: failed ? "bad" : "" };
}

function ofHost(now: ServiceNumbers): Card[] {
  const { host, isolation } = now;
  if (!host || !isolation) return [];
  const short = host.disk_free < host.disk_floor;
  const lag = host.lag_ms >= 50 ? `${count(host.lag_ms)} ms late` : "on time";
  return [
    {
      title: "Pool",
      value: `${count(host.pool_ready)} of ${count(host.pool_size)} ready`,
      more: "",
      tone: host.pool_ready < host.pool_size ? "warn" : "",
    },
    {
      title: "Isolation",
      value: isolation.holds ? "holds" : isolation.strength === "none" ? "none" : "does not hold",
      more: isolation.missing.length
        ? `missing: ${isolation.missing.map(plain).join(", ")}`
        : isolation.not_checked
          ? `${plain(isolation.strength)} · ${count(isolation.not_checked)} not checked`
          : isolation.strength === "none"
            ? "sandboxes are not isolated"
            : plain(isolation.strength),
      tone: isolation.holds ? "ok" : "bad",
    },
    {
      title: "Disk",
      value: `${bytes(host.disk_free)} free`,
      more: host.disk_floor ? `${bytes(host.disk_floor)} are kept free` : "",
      tone: short ? "bad" : "",
    },
    {
      title: "Service",
      value: lag,
      more: `${count(host.websockets)} WebSockets · ${count(host.http_5xx)} answers of 5xx in the last hour`,
      tone: host.http_5xx || host.lag_ms >= 500 ? "warn" : "",
    },
    {
      title: "Audit log",
      value: host.audit === "failing" ? "cannot be written" : host.audit,
      more: host.audit === "failing" ? "the service's log says why" : "",
      tone: host.audit === "failing" ? "bad" : host.audit === "written" ? "ok" : "",
    },
    ...(host.webhooks
      ? [
          {
            title: "Webhooks",
            value: `${count(host.webhooks_dead)} not delivered`,
            more: `${count(host.webhooks_waiting)} waiting`,
            tone: host.webhooks_dead ? ("warn" as const) : ("" as const),
          },
        ]
      : []),
  ];
}

export function cards(now: ServiceNumbers): Card[] {
  const hour = now.last_hour;
  return [
    sandboxes(now),
    {
      title: "Calls",
      value: `${count(now.calls_running)} running`,
      more: `${count(hour.calls)} in the last hour`,
      tone: "",
    },
    {
      title: "Errors of the last hour",
      value: count(hour.errors),
      more: counted(hour.outcomes, ["done", "cancelled"]),
      tone: hour.errors ? "bad" : "",
    },
    {
      title: "Egress denied",
      value: count(hour.egress_denied),
      more: `${count(hour.egress_allowed)} allowed, ${count(hour.egress_failed)} failed in the last hour`,
      tone: hour.egress_denied ? "warn" : "",
    },
    {
      title: "Refused",
      value: count(hour.refused + hour.shed),
      more: `${count(hour.refused)} by quotas, ${count(hour.shed)} for load in the last hour`,
      tone: hour.refused + hour.shed ? "warn" : "",
    },
    {
      title: "Queue of starts",
      value: `${count(now.waiting)} waiting`,
      more: "",
      tone: now.waiting ? "warn" : "",
    },
    ...ofHost(now),
    {
      title: "Trash",
      value: count(now.in_trash),
      more: now.trash_bytes ? bytes(now.trash_bytes) : "",
      tone: "",
    },
  ];
}

const LIMITS: Record<string, string> = {
  sandboxes: "sandboxes",
  calls: "calls at once",
  calls_per_minute: "calls per minute",
  cpu_seconds_per_day: "CPU s per day",
  egress_bytes_per_day: "egress per day",
  disk: "disk",
};

/** How much of a quota is used, and whether that is nearly all. */
export function quota(use: QuotaUse): { text: string; tone: "" | "warn" | "bad" } {
  const sized = use.limit === "disk" || use.limit === "egress_bytes_per_day";
  const show = (value: number) => (sized ? bytes(value) : count(Math.round(value)));
  const text = `${LIMITS[use.limit] ?? plain(use.limit)}: ${show(use.used)} of ${show(use.most)}`;
  return { text, tone: use.used >= use.most ? "bad" : use.used >= use.most * 0.9 ? "warn" : "" };
}

/** What coding agents have spent; empty where nothing is, and nothing is limited. */
export function budget(use: BudgetUse): { text: string; tone: "" | "warn" | "bad" } {
  const parts: [string, number, number][] = [
    ["USD", use.dollars, use.most_dollars],
    ["calls", use.requests, use.most_requests],
    ["tokens", use.tokens, use.most_tokens],
  ];
  const shown = parts.filter(([, used, most]) => used > 0 || most > 0);
  const number = (unit: string, value: number) => (unit === "USD" ? value.toFixed(2) : count(value));
  const text = shown
    .map(
      ([unit, used, most]) => `${number(unit, used)}${most > 0 ? ` of ${number(unit, most)}` : ""} ${unit}`,
    )
    .join(" · ");
  const most = Math.max(0, ...shown.map(([, used, limit]) => (limit > 0 ? used / limit : 0)));
  return { text, tone: most >= 1 ? "bad" : most >= 0.9 ? "warn" : "" };
}

export function problemWords(problem: ProblemShown): string {
  const detail = plain(problem.detail);
  switch (problem.kind) {
    case "call":
      return shownName(problem.detail).replace(
        /: (.*)$/,
        (_, end: string) => ` ended: ${end.replaceAll("_", " ")}`,
      );
    case "egress":
      return "Egress proxy denied a connection";
    case "quota":
      return `Quota reached: ${detail}`;
    case "load":
      return `Refused, the host is short: ${detail}`;
  }
}

const sum = (numbers: number[]): number => numbers.reduce((total, each) => total + each, 0);

/** What a chart shows, for those who do not see it. */
export function chartWords(series: Series, name: string): string {
  return (
    `${name}: ${count(sum(series.calls))} calls, ${count(sum(series.errors))} errors, ` +
    `${count(sum(series.denied))} egress denials, ${count(sum(series.refused))} refusals`
  );
}
