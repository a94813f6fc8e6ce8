import { describe, expect, test } from "vitest";
import { Feed, parsePart, queryOf, readWanted, type Wanted } from "../src/admin/feed";
import type { ProblemShown, ServiceNumbers } from "../src/admin/overview.generated";
import { budget, cards, chartWords, problemWords, quota, span } from "../src/admin/words";

const wanted = (more: Partial<Wanted> = {}): Wanted => ({ ...readWanted("", true), ...more });

describe("what is wanted", () => {
  test("an address says it, and nothing else is believed", () => {
    const found = readWanted(
      "?tab=problems&sort=cpu&order=desc&q=a%20b&state=failed&offset=250&tenant=acme",
      true,
    );
    expect(found).toEqual({
      tab: "problems",
      tenant: "acme",
      q: "a b",
      state: "failed",
      sort: "cpu",
      descending: true,
      offset: 200,
    });
    expect(readWanted("?tab=evil&sort=evil&state=evil&offset=-5", true)).toEqual(wanted());
    expect(readWanted(`?q=${"x".repeat(9000)}&offset=1e99`, true)).toEqual(wanted({ q: "x".repeat(200) }));
  });
  test("only an operator asks for tenants", () => {
    expect(readWanted("?tenant=acme", false).tenant).toBe("");
    expect(queryOf(readWanted("?tenant=acme", false), false)).toBe("limit=100");
    expect(queryOf(wanted(), false)).toBe("tenant=*&limit=100");
  });
  test("the address of the page stays short and comes back the same", () => {
    expect(queryOf(wanted(), true)).toBe("");
    const some = wanted({ tab: "tenants", q: "é&=?", sort: "idle", descending: true, offset: 300 });
    expect(readWanted(`?${queryOf(some, true)}`, true)).toEqual(some);
  });
});

describe("the feed", () => {
  test("parts are put together", () => {
    const feed = new Feed(() => "");
    feed.problem.value = { reason: "away", signIn: false };
    feed.take({ now: 1, problems: [] });
    feed.take({ now: 2, sandboxes: { rows: [], offset: 0, matching: 0, total: 0 } });
    expect(feed.overview.value?.problems).toEqual([]);
    expect(feed.overview.value?.sandboxes?.total).toBe(0);
    expect(feed.problem.value).toBe(null);
  });
  test.each(["", "null", "[]", "3", "{", '"x"'])("%s is no part", (text) => {
    expect(parsePart(text)).toBe(null);
  });
});

const numbers: ServiceNumbers = {
  sandboxes: { running: 3, starting: 0, stopped: 5000, failed: 1 },
  leases: 2,
  calls_running: 2,
  last_hour: {
    calls: 1200,
    errors: 5,
    outcomes: { done: 1195, timed_out: 2, failed: 3 },
    egress_allowed: 9,
    egress_denied: 4,
    egress_failed: 0,
    refused: 1,
    shed: 1,
  },
  waiting: 0,
  queue: [],
  in_trash: 0,
  trash_bytes: 0,
};

describe("words", () => {
  test("a user's cards have nothing of the host", () => {
    const titles = cards(numbers).map((card) => card.title);
    expect(titles).not.toContain("Pool");
    expect(titles).not.toContain("Isolation");
    expect(titles).toContain("Errors of the last hour");
  });
  test("errors are told by how calls ended, the most frequent first", () => {
    const errors = cards(numbers).find((card) => card.title === "Errors of the last hour");
    expect(errors).toMatchObject({ value: "5", more: "3 failed · 2 timed out", tone: "bad" });
  });
  test("isolation that does not hold says what is missing", () => {
    const host = {
      pool_ready: 1,
      pool_size: 2,
      disk_free: 5,
      disk_floor: 9,
      websockets: 0,
      lag_ms: 0,
      http_5xx: 0,
      audit: "failing" as const,
      webhooks: true,
      webhooks_waiting: 1,
      webhooks_dead: 2,
      counters: {},
    };
    const isolation = {
      strength: "namespaces",
      holds: false,
      checked_at: 1,
      missing: ["user_namespace"],
      not_checked: 0,
    };
    const found = cards({ ...numbers, host, isolation });
    expect(found.find((card) => card.title === "Isolation")).toMatchObject({
      value: "does not hold",
      more: "missing: user namespace",
      tone: "bad",
    });
    expect(found.find((card) => card.title === "Disk")?.tone).toBe("bad");
    expect(found.find((card) => card.title === "Pool")?.tone).toBe("warn");
    expect(found.find((card) => card.title === "Audit log")?.tone).toBe("bad");
    expect(found.find((card) => card.title === "Webhooks")).toMatchObject({
      value: "2 not delivered",
      tone: "warn",
    });
  });
  test("quotas and budgets say how near the limit is", () => {
    expect(quota({ limit: "sandboxes", used: 1, most: 4 })).toEqual({ text: "sandboxes: 1 of 4", tone: "" });
    expect(quota({ limit: "calls", used: 9, most: 10 }).tone).toBe("warn");
    expect(quota({ limit: "disk", used: 1 << 30, most: 1 << 30 })).toEqual({
      text: "disk: 1.0 GB of 1.0 GB",
      tone: "bad",
    });
    const none = { dollars: 0, most_dollars: 0, requests: 0, most_requests: 0, tokens: 0, most_tokens: 0 };
    expect(budget(none)).toEqual({ text: "", tone: "" });
    expect(budget({ ...none, dollars: 1.5, most_dollars: 1.5 })).toEqual({
      text: "1.50 of 1.50 USD",
      tone: "bad",
    });
  });
  test("hostile details are text without direction marks", () => {
    const problem: ProblemShown = {
      tenant: "acme",
      chat: "a",
      kind: "call",
      detail: "bash_tool: timed_out\u202e<img>",
      since: 1,
      at: 2,
      count: 3,
    };
    expect(problemWords(problem)).toBe("bash_tool ended: timed out\ufffd<img>");
    expect(problemWords({ ...problem, kind: "quota", detail: "calls_per_minute of the tenant" })).toBe(
      "Quota reached: calls per minute of the tenant",
    );
  });
  test("a chart is told in one sentence", () => {
    const series = { end: 60, step: 60, calls: [1, 2], errors: [0, 1], denied: [0, 0], refused: [4, 0] };
    expect(chartWords(series, "By the minute")).toBe(
      "By the minute: 3 calls, 1 errors, 0 egress denials, 4 refusals",
    );
  });
  test("spans are whole", () => {
    expect([span(-3), span(0.4), span(59.6), span(3700)]).toEqual(["0 s", "0 s", "1 min 0 s", "1 h 1 min"]);
  });
});
