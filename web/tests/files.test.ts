import { describe, expect, it, vi } from "vitest";
import type { PortRecord } from "../src/common/api.generated";
import { diffOf, hunksOf } from "../src/common/diff";
import type { FileChanges } from "../src/common/files.generated";
import { shortTime } from "../src/common/format";
import { arranged, compare, numberOf } from "../src/viewer/gridrows";
import { places, spans } from "../src/viewer/pdfsearch";
import { clamp, fitting } from "../src/viewer/zoom";
import { byPrograms, counted } from "../src/workspace/changes";
import { isEditable } from "../src/workspace/editor";
import { below, rootOf, sandboxPath } from "../src/workspace/fileactions";
import { iconOf } from "../src/workspace/fileicons";
import { type Entry, newestFirst } from "../src/workspace/files";
import { parseLine, type Results, withLine } from "../src/workspace/filesearch";
import { EMPTY, type Log, rowOf, withPiece, withSequence } from "../src/workspace/logtext";
import { addressOf, placeIn } from "../src/workspace/place";
import { typedTarget } from "../src/workspace/ports";

vi.hoisted(() => {
  // The theme asks for it as soon as it is loaded.
  globalThis.matchMedia ??= (() => ({ matches: false, addEventListener: () => undefined })) as never;
});

describe("rows of a table", () => {
  const rows = [
    ["b", "10"],
    ["a", "9"],
    ["C", ""],
    ["ä", "1,000.5"],
  ];
  it("are sorted by numbers as numbers, and what is empty comes last either way", () => {
    expect(arranged(rows, "", { column: 1, down: false })).toEqual([1, 0, 3, 2]);
    expect(arranged(rows, "", { column: 1, down: true })).toEqual([3, 0, 1, 2]);
    expect(arranged(rows, "", { column: 0, down: false })).toEqual([1, 3, 0, 2]);
  });
  it("are kept when they hold every word of the filter", () => {
    expect(arranged(rows, "  1 B ", null)).toEqual([0]);
    expect(arranged(rows, "nothing", null)).toEqual([]);
  });
  it("have numbers with signs, groups, currencies and percent", () => {
    expect(["−3", "$1,234.5", "12 %", "1e3"].map(numberOf)).toEqual([-3, 1234.5, 12, 1000]);
    expect(["", "1.2.3", "abc", "2024-01-02"].map(numberOf)).toEqual([null, null, null, null]);
    expect(compare("2", "x", false)).toBeLessThan(0);
  });
});

describe("a search in a PDF", () => {
  it("finds places that do not overlap", () => {
    expect(places("aaaa", "aa")).toEqual([0, 2]);
    expect(places("abc", "")).toEqual([]);
  });
  it("marks a match over several pieces of the page", () => {
    expect(spans(["He", "llo w", "orld"], "LO WO")).toEqual([
      { piece: 1, from: 1, to: 5, nth: 0 },
      { piece: 2, from: 0, to: 1, nth: 0 },
    ]);
    expect(spans(["aXa", "Xa"], "x").map(({ piece, nth }) => [piece, nth])).toEqual([
      [0, 0],
      [1, 1],
    ]);
  });
});

it("a picture fits, and is never larger than it is", () => {
  expect(fitting(2000, 1000, { width: 500, height: 500 })).toBe(0.25);
  expect(fitting(10, 10, { width: 500, height: 500 })).toBe(1);
  expect(fitting(0, 0, { width: 500, height: 500 })).toBe(1);
  expect([clamp(0), clamp(1000)]).toEqual([0.05, 32]);
});

describe("the place in an address", () => {
  it("names a panel, a port and a view, and nothing else", () => {
    expect(placeIn("http://x/preview/c/?panel=ports&port=3000")).toEqual({
      panel: "ports",
      port: 3000,
      view: "files",
    });
    expect(placeIn("http://x/preview/c/?panel=evil&port=-1")).toEqual({
      panel: null,
      port: null,
      view: "files",
    });
    expect(placeIn("http://x/preview/c/a.md?panel=files&view=changes").view).toBe("changes");
  });
  it("keeps the file and takes the rest away", () => {
    const from = "http://x/preview/c/a%20b.md?panel=ports&port=3000";
    expect(addressOf(from, { panel: "terminal" })).toBe("http://x/preview/c/a%20b.md?panel=terminal");
    expect(addressOf(from, { panel: "files", view: "changes" })).toBe(
      "http://x/preview/c/a%20b.md?panel=files&view=changes",
    );
  });
});

describe("the address bar of a port", () => {
  const port = (number: number): PortRecord => ({
    port: number,
    process: "",
    address: "",
    open: true,
    url: `http://${number}-x.localhost:8081/`,
    link: "",
    public: null,
  });
  const all = [port(3000), port(5173)];
  const at = (typed: string) => typedTarget(all, port(3000), typed);
  it("takes paths, whole addresses, and addresses as programs print them", () => {
    expect(at("/a?b=1")).toEqual({ port: 3000, path: "a?b=1" });
    expect(at("http://5173-x.localhost:8081/x")).toEqual({ port: 5173, path: "x" });
    expect(at("localhost:5173/x/y")).toEqual({ port: 5173, path: "x/y" });
    expect(at("http://127.0.0.1:9/")).toEqual({ port: 9, path: "" });
    expect(at("http://0.0.0.0:5173")).toEqual({ port: 5173, path: "" });
    expect(at(":5173/a")).toEqual({ port: 5173, path: "a" });
    expect(at("5173")).toEqual({ port: 5173, path: "" });
    expect(at("2024")).toEqual({ port: 3000, path: "2024" });
    expect(at("https://example.org/")).toBeNull();
  });
});

describe("a search over the files", () => {
  const none: Results = { names: [], texts: [], state: "searching", complete: true, problem: "" };
  it("groups lines by their file and says when there is more", () => {
    const lines = [
      '{"type":"line","root":"outputs","path":"a","line":1,"text":"x"}',
      "not json",
      '{"type":"line","root":"outputs","path":"b","line":2,"text":"y"}',
      '{"type":"line","root":"outputs","path":"a","line":9,"text":"z"}',
      '{"type":"end","complete":false}',
    ];
    let results = none;
    for (const line of lines.map(parseLine)) if (line) results = withLine(results, line);
    expect(results.texts.map((found) => [found.path, found.lines.length])).toEqual([
      ["a", 2],
      ["b", 1],
    ]);
    expect([results.state, results.complete]).toEqual(["done", false]);
  });
});

it("outputs come newest first, whatever they are", () => {
  const entry = (name: string, modified: string): Entry => ({
    name,
    kind: name.endsWith("/") ? "directory" : "file",
    size: 0,
    modified,
    root: "outputs",
    path: name,
    changed: false,
  });
  const all = [
    entry("d/", "2026-01-01T00:00:00Z"),
    entry("b", "2026-01-03T00:00:00Z"),
    entry("a", "2026-01-02T00:00:00Z"),
  ];
  expect(newestFirst(all).map((one) => one.name)).toEqual(["b", "a", "d/"]);
});

it("a file's icon, root and path in the sandbox follow from its path", () => {
  expect(["a.png", "b.py", "c.xlsx", "d.pdf", "e", "f.odt"].map(iconOf)).toEqual([
    "picture",
    "code",
    "table",
    "pages",
    "file",
    "pages",
  ]);
  expect(["a/b", "uploads/x", "workspace/y", "outputs/uploads/z"].map(rootOf)).toEqual([
    "outputs",
    "uploads",
    "workspace",
    "outputs",
  ]);
  const target = { path: "outputs/uploads/z", root: "outputs", folder: false } as const;
  expect([below(target), sandboxPath(target)]).toEqual(["uploads/z", "/mnt/user-data/outputs/uploads/z"]);
});

it("only a text whose bytes are all kept can be edited", () => {
  const of = (...bytes: number[]) => isEditable(new Uint8Array(bytes).buffer);
  expect([of(), of(0xef, 0xbb, 0xbf, 0x61), of(0x61, 0), of(0xe4, 0x61)]).toEqual([true, true, false, false]);
});

const textOf = (log: Log) =>
  log.blocks.flatMap((block) => block.rows.map((row) => row.map((run) => run.text).join("")));

it("a log keeps its end, and begins anew when its file does", () => {
  const piece = { start: 0, text: "a\nb", size: 3, reset: true, stopped: "" };
  const old = withPiece(EMPTY, { ...piece, start: 9, text: "old\n" });
  expect([textOf(old), old.cut]).toEqual([["old"], true]);
  const one = withPiece(old, piece);
  expect([textOf(one), one.rest, one.size, one.cut]).toEqual([["a"], "b", 3, false]);
  const more = withPiece(one, { ...piece, reset: false, text: "c\n" });
  expect([textOf(more), more.rest]).toEqual([["a", "bc"], ""]);
  const lines = Array.from({ length: 30_000 }, (_, n) => `line ${n} ${"x".repeat(50)}`).join("\n");
  const long = withPiece(more, { ...piece, reset: false, text: `${lines}\n` });
  expect(long.cut).toBe(true);
  expect(textOf(long).at(-1)).toContain("line 29999 ");
  expect(textOf(long).length).toBeLessThan(20_000);
  const [first, second] = long.blocks;
  expect(second?.first).toBe((first?.first ?? 0) + 60);
  const grown = withPiece(long, { ...piece, reset: false, text: "end\n" });
  expect(grown.blocks.at(-2)).toBe(long.blocks.at(-2));
});

it("a row of a log has its colours, and a terminal's other sequences do nothing", () => {
  const { row, pen } = rowOf("gone\rplain \u001b[1;31mred\u001b[2J\u001b]0;title\u0007!\u001b[0m\u202e", {
    dim: true,
  });
  expect(row).toEqual([
    { dim: true, text: "plain " },
    { dim: true, bold: true, fg: 1, text: "red!" },
    { text: "\ufffd" },
  ]);
  expect(pen).toEqual({});
  expect(withSequence({}, "38;5;208")).toEqual({ fg: 208 });
  expect(withSequence({}, "48;2;1;2;999")).toEqual({ bg: "#0102ff" });
  expect(withSequence({}, "38;5;999")).toEqual({});
  expect(withSequence({ bold: true, fg: 3 }, "22;39;95")).toEqual({ fg: 13 });
  expect(withSequence({ bold: true }, "")).toEqual({});
  const long = rowOf("y".repeat(30_000), {}).row;
  expect([long[0]?.text.length, long[1]?.text]).toEqual([20_000, " … 10,000 more characters"]);
});

it("a difference is shown with some lines around it", () => {
  const before = Array.from({ length: 30 }, (_, n) => `line ${n}`);
  const after = before.with(20, "other");
  const shown = hunksOf(diffOf(before.join("\n"), after.join("\n")), 2);
  expect(shown.map((line) => `${line.sign}${line.text}`)).toEqual([
    "…18 lines",
    " line 18",
    " line 19",
    "-line 20",
    "+other",
    " line 21",
    " line 22",
    "…7 lines",
  ]);
  expect(hunksOf([])).toEqual([]);
});

it("changes count their lines, and what commands wrote is what no entry names", () => {
  const change = {
    id: "1",
    at: 1,
    by: "model",
    tool: "",
    done: "changed",
    path: "/mnt/user-data/outputs/a",
    shown: "a",
    to: "",
    size_before: 1,
    size_after: 1,
    kept: true,
    undone: false,
    line: 1,
    text_before: "a\nb\n",
    text_after: "a\nc\nd\n",
  } as const;
  expect(counted(change)).toEqual({ added: 2, removed: 1 });
  const found: FileChanges = {
    changes: [change],
    files: [
      { root: "outputs", path: "a", size: 1, modified: "" },
      { root: "outputs", path: "b", size: 1, modified: "" },
    ],
    complete: true,
  };
  expect(byPrograms(found).map((file) => file.path)).toEqual(["b"]);
});

it("a time is that of today, or a date", () => {
  const now = new Date(2026, 10, 17, 12, 0);
  expect(shortTime(new Date(2026, 10, 17, 9, 5).getTime() / 1000, now)).toMatch(/0?9.05/);
  expect(shortTime(new Date(2025, 0, 2).getTime() / 1000, now)).toContain("25");
  expect(shortTime("", now)).toBe("");
});
