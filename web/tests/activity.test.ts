import { describe, expect, test } from "vitest";
import { terminalRows } from "../src/activity/ansi";
import { anchors, diffRows, lineDiff } from "../src/activity/linediff";
import { apply, CallLog } from "../src/activity/log";
import { needsTerminal, paletteColour, plainRows, safeRows } from "../src/activity/printed";
import { namedResult, writtenBy } from "../src/activity/results";
import { refusedPlaces, rowsOf } from "../src/activity/rows";
import { treeOf, usageWords } from "../src/activity/steps";
import { beside, sentenceOf, standing } from "../src/activity/words";
import { type Call, callOf } from "../src/workspace/calls";
import type { ActivityEvent, EndEvent, StepEvent } from "../src/workspace/events.generated";

const NOW = 1_790_000_000;

function call(tool: string, args: Record<string, string> = {}, more: Partial<Call> = {}): Call {
  const event = {
    type: "call" as const,
    id: more.id ?? tool,
    tool,
    description: null,
    arguments: args,
    at: NOW,
  };
  return { ...callOf(event), state: "done", seconds: 1, ending: "done", ...more };
}

describe("words", () => {
  const change = { before: null, after: "x" } as Call["files"][number];
  test.each([
    [call("bash_tool", { command: "make" }, { description: "Build it" }), "Ran Build it"],
    [call("bash_tool", { command: "make" }, { state: "running" }), "Running make"],
    [call("str_replace", { path: "/home/assistant/analyse.py" }), "Edited analyse.py"],
    [call("str_replace", { path: "/a/b.py" }, { state: "failed" }), "Tried to edit b.py"],
    [call("create_file", { path: "/a/b.py" }, { files: [change] }), "Created b.py"],
    [call("create_file", { path: "/a/b.py" }), "Wrote b.py"],
    [call("view", { path: "/mnt/user-data/outputs/revenue.png" }), "Looked at revenue.png"],
    [call("view", { path: "/a/b.py", view_range: "[1, 40]" }), "Read b.py lines 1 to 40"],
    [call("view", { path: "/a" }, { result: "/a/\n  b" }), "Listed /a"],
    [call("sub_agent", { prompt: "Fix\nall" }, { state: "running" }), "Agent works on Fix …"],
    [call("other", { path: "/a" }), "Called other /a"],
  ])("%#", (given, expected) => expect(sentenceOf(given)).toBe(expected));

  test("the state has the code, the signal or the time", () => {
    expect(standing(call("bash_tool", {}, { state: "failed", ending: "failed", exitCode: 3 }))).toBe(
      "failed · exit code 3",
    );
    const late = {
      state: "failed",
      ending: "timed_out",
      notes: ["[timed out after 3 s] The command …"],
    } as const;
    expect(standing(call("bash_tool", {}, late))).toBe("timed out after 3 s");
    expect(standing(call("bash_tool", {}, { state: "failed", ending: "out_of_memory" }))).toBe(
      "out of memory",
    );
    expect(
      beside(call("bash_tool", {}, { notes: ["[exit code 1]", "Note: x.example was not reached."] })),
    ).toEqual(["x.example was not reached."]);
  });
});

describe("rows", () => {
  const read = (id: string) => call("view", { path: `/a/${id}.py` }, { id, at: Date.now() / 1000 });
  test("reads in a row are folded, pictures and failures are not", () => {
    const picture = call("view", { path: "/a/x.png" }, { id: "p", at: Date.now() / 1000 });
    const failed = { ...read("f"), state: "failed" as const };
    const calls = [read("1"), read("2"), picture, read("3"), failed];
    const kinds = (open: string[]) => rowsOf(calls, "", new Set(open), false).map((row) => row.key);
    expect(kinds([])).toEqual(["reads-1", "p", "3", "f"]);
    expect(kinds(["reads-1"])).toEqual(["reads-1", "1", "2", "p", "3", "f"]);
    expect(rowsOf(calls, "looked", new Set(), true).map((row) => row.key)).toEqual(["p"]);
  });
  test("connections that were not let through are one row where several follow each other", () => {
    const refused = (id: string, place: string) =>
      call("", {}, { id, at: Date.now() / 1000, note: `Not let through: ${place}. It is not listed.` });
    const calls = [refused("1", "a.org:80"), refused("2", "a.org:80"), read("3"), refused("4", "b.org:443")];
    const keys = (open: string[]) => rowsOf(calls, "", new Set(open), false).map((row) => row.key);
    expect(keys([])).toEqual(["refusals-1", "3", "4"]);
    expect(keys(["refusals-1"])).toEqual(["refusals-1", "1", "2", "3", "4"]);
    expect(refusedPlaces(calls.filter((one) => one.note))).toEqual(["a.org:80", "b.org:443"]);
  });
  test("a new day has a row", () => {
    const rows = rowsOf([call("bash_tool", {}, { at: NOW - 5 * 86_400 }), read("1")], "", new Set(), false);
    expect(rows.map((row) => row.kind)).toEqual(["day", "call", "day", "call"]);
  });
});

describe("many events", () => {
  const began = (id: string): ActivityEvent => ({
    type: "call",
    id,
    tool: "view",
    description: null,
    arguments: {},
    at: NOW,
  });
  test("ten thousand calls cost little, and the oldest make room", () => {
    const log = new CallLog([], 10_000);
    const start = performance.now();
    for (let i = 0; i < 12_000; i++) {
      log.apply(began(`${i}`));
      log.apply({ type: "output", id: `${i}`, from: 0, text: "x" });
    }
    expect(performance.now() - start).toBeLessThan(5_000);
    expect(log.calls.length).toBeLessThanOrEqual(10_000);
    expect(log.calls.at(-1)?.id).toBe("11999");
    expect(log.dropped).toBe(true);
    log.apply({ type: "output", id: "11999", from: 1, text: "y" });
    expect(log.calls.at(-1)?.output).toBe("xy");
  });
  test("text is bounded, too", () => {
    const log = new CallLog([], 10_000, 100_000);
    for (let i = 0; i < 50; i++) {
      log.apply(began(`${i}`));
      log.apply({ type: "output", id: `${i}`, from: 0, text: "x".repeat(10_000) });
    }
    expect(log.calls.length).toBeLessThan(6);
  });
  test("what was before comes in front, and nothing twice", () => {
    const log = new CallLog();
    log.apply(began("b"));
    log.prepend([began("a"), { type: "output", id: "a", from: 0, text: "x" }, began("b")]);
    expect(log.calls.map((one) => [one.id, one.output])).toEqual([
      ["a", "x"],
      ["b", ""],
    ]);
  });
});

const text = (rows: readonly (readonly { text: string }[])[]) =>
  rows.map((row) => row.map((run) => run.text).join(""));

describe("output", () => {
  test("colours and returns are those of a terminal", async () => {
    const { rows } = await terminalRows(
      "\u001b[1;31mred\u001b[0m plain\n10 %\r100 %\n\u001b[38;2;1;2;3mx\u001b[m",
    );
    expect(text(rows)).toEqual(["red plain", "100 %", "x"]);
    expect(rows[0]).toEqual([{ text: "red", fg: 1, bold: true }, { text: " plain" }]);
    expect(rows[2]?.[0]?.fg).toBe("#010203");
  });
  test("what asks for more is not obeyed, and its text stays text", async () => {
    const hostile =
      "\u001b]0;title\u0007\u001b]52;c;aGk=\u0007\u001b]8;;javascript:alert(1)\u0007link\u001b]8;;\u0007<b>x</b>\u202eabc\u001bP\u001b\\";
    const { rows } = await terminalRows(hostile);
    expect(text(safeRows(rows))).toEqual(["link<b>x</b>\ufffdabc"]);
  });
  test("a line that is longer than the terminal is one line", async () => {
    const { rows } = await terminalRows(`\u001b[32m${"x".repeat(20_000)}\u001b[0m\nend`);
    expect(text(rows).map((line) => line.length)).toEqual([20_000, 3]);
  });
  test("wide and combined characters stay whole", async () => {
    const { rows } = await terminalRows("\u001b[33m日本 e\u0301 \u{1f600}!\u001b[0m");
    expect(text(rows)[0]?.trimEnd()).toBe("日本 e\u0301 \u{1f600}!");
  });
  test("a text without controls needs no terminal", () => {
    expect(["a\tb\r\nc", "\u001b[1m", "a\rb", "a\bb"].map(needsTerminal)).toEqual([false, true, true, true]);
    expect(text(plainRows("a\u0000\u202eb\nc\n"))).toEqual(["a\u2400\ufffdb", "c"]);
  });
  test("the palette is that of all terminals", () => {
    expect([paletteColour(16), paletteColour(231), paletteColour(232), paletteColour(196)]).toEqual([
      "#000000",
      "#ffffff",
      "#080808",
      "#ff0000",
    ]);
  });
});

describe("a change of any size", () => {
  const put = (change: ReturnType<typeof lineDiff>, sign: "+" | "-") =>
    change.parts.flatMap((part) => (part.sign === " " || part.sign === sign ? part.lines : [])).join("\n");
  test("is found where it is", () => {
    const before = Array.from({ length: 50_000 }, (_, i) => `line ${i}`);
    const after = before.with(7, "seven").with(40_000, "far");
    const change = lineDiff(before.join("\n"), after.join("\n"));
    expect([change.added, change.removed]).toEqual([2, 2]);
    expect(diffRows(change).length).toBeLessThan(30);
  });
  test("is true for texts that are made to be slow", () => {
    const before = Array.from({ length: 20_000 }, (_, i) => `${(i * 7919) % 5}`).join("\n");
    const after = Array.from({ length: 20_000 }, (_, i) => `${(i * 104_729) % 7}`).join("\n");
    const start = performance.now();
    const change = lineDiff(before, after, 1_000);
    expect(performance.now() - start).toBeLessThan(15_000);
    expect([put(change, "-"), put(change, "+")]).toEqual([before, after]);
  });
  test("the end of a line is no line, unless only one text has it", () => {
    expect(lineDiff("", "a\nb\n")).toMatchObject({ added: 2, removed: 0 });
    expect(lineDiff("a\n", "a")).toMatchObject({ added: 1, removed: 0 });
    expect(lineDiff("a\n", "a\n")).toMatchObject({ added: 0, removed: 0 });
  });
  test("lines that moved are anchors once", () => {
    expect(anchors(["a", "b", "c", "x", "x"], ["c", "a", "b", "x"])).toEqual([
      [0, 1],
      [1, 2],
    ]);
  });
});

const step = (number: number, more: Partial<StepEvent>): StepEvent => ({
  type: "step",
  id: "1",
  number,
  kind: "tool",
  tool: "Bash",
  text: "",
  key: "",
  parent: "",
  error: false,
  at: NOW,
  ...more,
});

describe("an agent", () => {
  test("has its tools inside, each with its result", () => {
    const tree = treeOf([
      step(0, { kind: "text", text: "I look." }),
      step(1, { key: "t1", tool: "Task" }),
      step(2, { key: "t2", parent: "t1", text: "ls" }),
      step(3, { kind: "result", key: "t2", parent: "t1", text: "a" }),
      step(4, { kind: "result", key: "t1", text: "done" }),
      step(5, { key: "t1", parent: "t1" }),
    ]);
    expect(tree.map((node) => node.step.number)).toEqual([0, 1, 5]);
    expect(tree[1]?.children.map((node) => [node.step.text, node.result?.text])).toEqual([["ls", "a"]]);
    expect(tree[1]?.result?.text).toBe("done");
  });
  test("says what it used", () => {
    const usage = { type: "usage", id: "1", session: "s", model: "sonnet", turns: 2 } as const;
    expect(usageWords({ ...usage, input_tokens: 12_300, output_tokens: 456, dollars: 0.0421 })).toEqual([
      "sonnet",
      "2 turns",
      "12k tokens in, 456 out",
      "$0.0421",
    ]);
  });
  test("its steps are told once", () => {
    const events: ActivityEvent[] = [
      { type: "call", id: "1", tool: "sub_agent", description: null, arguments: {}, at: NOW },
      step(0, {}),
      step(1, {}),
      step(1, {}),
    ];
    expect(events.reduce<readonly Call[]>(apply, [])[0]?.steps).toHaveLength(2);
  });
});

describe("results", () => {
  const file = (name: string, at: number) => ({
    name,
    path: name,
    modified: new Date(at * 1000).toISOString(),
  });
  test("belong to the call that ran when they were written, or that names them", () => {
    const first = call(
      "bash_tool",
      { command: "python draw.py chart.png" },
      { id: "1", at: NOW, seconds: 10 },
    );
    const second = call("bash_tool", { command: "sleep 1" }, { id: "2", at: NOW + 2, seconds: 8 });
    const files = [file("chart.png", NOW + 5), file("table.csv", NOW + 5), file("old.html", NOW - 500)];
    const found = writtenBy([first, second], files, NOW + 20);
    expect([...found]).toEqual([
      ["1", [{ kind: "picture", path: "chart.png" }]],
      ["2", [{ kind: "table", path: "table.csv" }]],
    ]);
  });
  test("a file tool has its own", () => {
    const path = "/mnt/user-data/outputs/a/page.html";
    expect(namedResult(call("create_file", { path }))).toEqual({ kind: "page", path: "a/page.html" });
    expect(namedResult(call("create_file", { path: "/home/assistant/x.py" }))).toBeNull();
    expect(namedResult(call("create_file", { path: "/mnt/user-data/outputs/../../x.html" }))).toBeNull();
  });
});

const ended: EndEvent = {
  type: "end",
  id: "1",
  seconds: 1,
  ending: "done",
  error: false,
  result: "",
  notes: [],
};

test("the pictures of an answer are known by their hash", () => {
  const events: ActivityEvent[] = [
    { type: "call", id: "1", tool: "view", description: null, arguments: {}, at: NOW },
    { ...ended, pictures: ["ab"] },
  ];
  expect(events.reduce<readonly Call[]>(apply, [])[0]?.pictures).toEqual(["ab"]);
});
