import { describe, expect, test, vi } from "vitest";
import { apply } from "../src/activity/log";
import { asMarkdown } from "../src/activity/markdown";
import type { FolderEntry } from "../src/common/api.generated";
import { diffOf } from "../src/common/diff";
import { ago, bytes, seconds, shownName } from "../src/common/format";
import { hasSource, kindOfBytes, kindOfName, looksLikeText } from "../src/common/kinds";
import { Addresses, decodePath, encodePath, isPlain, type PageData, seen } from "../src/common/page";
import { chatPath, targetOf } from "../src/common/sandbox";
import { columnName } from "../src/viewer/grid";
import { hexLines } from "../src/viewer/hex";
import { ASSET_NAME } from "../src/viewer/messages";
import {
  type ActivityEvent,
  type Call,
  codeOf,
  editOf,
  gist,
  parseEvent,
  stateOf,
} from "../src/workspace/calls";
import type { EndEvent } from "../src/workspace/events.generated";
import { type Entry, Files, pathOf, type Root, sorted } from "../src/workspace/files";
import { choose } from "../src/workspace/layout";
import { sizeOf } from "../src/workspace/load";

const page: PageData = {
  root: "../../",
  assets: "",
  chat: "a:b@c",
  path: "",
  raw: "raw/cap/",
  sandbox: "running",
  embed: false,
  run: false,
  next: "",
  message: "",
  locked: true,
  issuer: "",
  view: false,
  operator: false,
  tenant: "",
  opens: "chat",
  card: false,
  signed_in: false,
};

const listed: FolderEntry = {
  name: "a b",
  kind: "file",
  size: 1,
  modified: "2026-01-02T03:04:05Z",
  root: "outputs",
  url: "",
};

describe("addresses", () => {
  test("stay below whatever prefix the page has", () => {
    const at = new Addresses(page, "https://h.example/pre/fix/preview/a:b@c/");
    expect(at.file("x y/ü?.txt")).toBe("https://h.example/pre/fix/files/a%3Ab%40c/x%20y/%C3%BC%3F.txt");
    expect(at.listing("sub")).toBe("https://h.example/pre/fix/files/a%3Ab%40c/sub/");
    expect(at.socket(at.terminal("ws"))).toBe("wss://h.example/pre/fix/terminal/a%3Ab%40c/ws");
    expect(at.pictures("a.png")).toBe("https://h.example/pre/fix/raw/cap/a.png");
  });
  test("keep the bytes of a name that are no UTF-8", () => {
    const at = new Addresses(page, "https://h.example/preview/c/");
    for (const encoded of ["inv%FF.txt", "a/%E2%82b/%C0%AE%ED%A0%80", "%C3%BC%F0%9F%98%80%80"]) {
      const path = decodePath(encoded);
      expect(encodePath(path)).toBe(encoded);
      expect(at.file(path)).toBe(`https://h.example/files/a%3Ab%40c/${encoded}`);
    }
    expect(decodePath("%C3%BC/%F0%9F%98%80%20%25")).toBe("ü/😀 %");
    expect(pathOf({ ...listed, url: "/files/c/inv%FF" }, "")).toBe("inv\udcff");
  });
  test("a path with a way up, or with nothing between slashes, has none", () => {
    const at = new Addresses(page, "https://h.example/preview/a:b@c/");
    for (const path of [
      "..",
      "../x",
      "a/../../x",
      "a/..",
      "a/../",
      "./x",
      "/x",
      "//x",
      "a//b",
      "a//",
      "/",
      "../",
    ]) {
      expect(isPlain(path)).toBe(false);
      for (const address of ["file", "listing", "download", "preview", "upload", "pictures"] as const)
        expect(() => at[address](path)).toThrow();
    }
    for (const path of ["", "a", "a/b/", "...", "..a/b..", "..%2fx", "..\\x", " /x"])
      expect(isPlain(path)).toBe(true);
    expect(at.file("..%2f..%2fx")).toBe("https://h.example/files/a%3Ab%40c/..%252f..%252fx");
    expect(at.file("..\\..\\x")).toBe("https://h.example/files/a%3Ab%40c/..%5C..%5Cx");
  });
  test("the way back is counted from the root of the service", () => {
    const at = new Addresses(page, "https://h.example/pre/fix/terminal/c/");
    expect(at.here("https://h.example/pre/fix/terminal/c/?a=1")).toBe("/terminal/c/?a=1");
  });
  test("carry the signature of a signed link, but never to untrusted bytes", () => {
    const at = new Addresses(page, "https://h.example/preview/c/?key=k1");
    expect(at.download("f")).toBe("https://h.example/files/a%3Ab%40c/f?download=1&wake=1&key=k1");
    expect(at.pictures("a.png")).not.toContain("k1");
    expect(at.grant("b/a.html", { scripts: true, all: false })).toBe(
      "https://h.example/api/chats/a%3Ab%40c/raw/b/a.html?scripts=1&all=0&key=k1",
    );
  });
  test("a person sees them without the signature, save in a frame, which needs it to load again", () => {
    const signed = "https://h.example/preview/c/a%20b.md?embed=1&key=k1#part";
    expect(seen(signed, false)).toBe("https://h.example/preview/c/a%20b.md?embed=1#part");
    expect(seen(signed, true)).toBe(signed);
    expect(seen("https://h.example/login?next=a%20b", false)).toBe("https://h.example/login?next=a%20b");
  });
});

describe("kinds", () => {
  test.each([
    ["a.PY", "text"],
    ["README", "text"],
    [".gitignore", "text"],
    ["a.tar.gz", "archive"],
    ["a.ipynb", "notebook"],
    ["flow.mmd", "diagram"],
    ["a.SVG", "svg"],
    ["a.unknown", null],
    ["noending", null],
  ])("%s is %s", (name, kind) => {
    expect(kindOfName(name)).toBe(kind);
  });
  test("unknown names are judged by their bytes", () => {
    const of = (text: string) => kindOfBytes(new TextEncoder().encode(text));
    expect(of("%PDF-1.7")).toBe("pdf");
    expect(of("PK\u0003\u0004")).toBe("archive");
    expect(of("plain words")).toBe("text");
    expect(kindOfBytes(new Uint8Array([1, 0, 2]))).toBe("hex");
    expect(kindOfBytes(new Uint8Array([0xc3, 0x28]))).toBe("hex");
  });
  test("text that is cut within a character is still text", () => {
    const whole = new TextEncoder().encode("é".repeat(20_000));
    expect(looksLikeText(whole.subarray(0, 16 * 1024 + 1))).toBe(true);
  });
  test("an SVG has a source, a PNG has none", () => {
    expect(hasSource("svg")).toBe(true);
    expect(hasSource("image")).toBe(false);
  });
});

describe("the tree", () => {
  test("an entry's own address tells its path", () => {
    expect(pathOf({ ...listed, url: "/pre/files/chat/uploads/a%20b?x=1" }, "")).toBe("uploads/a b");
    expect(pathOf({ ...listed, url: "https://h/files/chat/sub/" }, "")).toBe("sub");
  });
  test("without one, folder and name do", () => {
    expect(pathOf(listed, "")).toBe("a b");
    expect(pathOf(listed, "x/y/")).toBe("x/y/a b");
  });
  test("a folder is opened in the root that it names, or else in the first that has it", () => {
    vi.stubGlobal("fetch", () => Promise.reject(new Error("not in this test")));
    const files = new Files(new Addresses(page, "https://h.example/preview/c/"));
    const folder = (root: Root, path: string) =>
      ({ root, path, name: path.split("/").at(-1), kind: "directory" }) as Entry;
    const top = [
      folder("outputs", "outputs/uploads"),
      folder("outputs", "plots"),
      folder("uploads", "uploads/data"),
      folder("workspace", "workspace/data"),
    ];
    files.folders.value = new Map([[":", top]]);
    const opened = (path: string) => {
      files.open.value = new Set();
      files.reveal(path);
      return [...files.open.value];
    };
    expect(opened("uploads/data/deep")).toEqual(["uploads:uploads/data", "uploads:uploads/data/deep"]);
    expect(opened("uploads/other")).toEqual(["outputs:outputs/uploads", "outputs:outputs/uploads/other"]);
    expect(opened("data")).toEqual(["uploads:uploads/data"]);
    expect(opened("plots")).toEqual(["outputs:plots"]);
    expect(opened("nowhere")).toEqual([]);
    vi.unstubAllGlobals();
  });
  test("what is not listed whole is known until it is", async () => {
    let complete = false;
    vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ path: "", entries: [], complete })));
    const files = new Files(new Addresses(page, "https://h.example/preview/c/"));
    await files.refresh();
    expect(files.isPartial()).toBe(true);
    expect(files.isPartial({ root: "outputs", path: "plots" } as Entry)).toBe(false);
    complete = true;
    await files.refresh();
    expect(files.isPartial()).toBe(false);
    vi.unstubAllGlobals();
  });
  test("folders first, numbers by value", () => {
    const entry = (name: string, kind: Entry["kind"]) => ({ name, kind }) as Entry;
    const order = sorted([entry("f10", "file"), entry("f9", "file"), entry("z", "directory")]);
    expect(order.map((e) => e.name)).toEqual(["z", "f9", "f10"]);
  });
});

describe("activity", () => {
  const began = {
    type: "call",
    id: "b1-1",
    tool: "bash_tool",
    description: null,
    arguments: {},
    at: 0,
  } as const;
  const finished: EndEvent = {
    type: "end",
    id: "b1-1",
    seconds: 1,
    ending: "done",
    error: false,
    result: "",
    notes: [],
  };
  const events = [
    { ...began, id: "1", arguments: { command: "ls" } },
    { type: "output", id: "1", text: "a\n", from: 0 },
    { type: "output", id: "1", text: "b\n", from: 2 },
    { ...finished, id: "1", seconds: 0.5, exit_code: 2, error: true },
  ].map((e) => parseEvent(JSON.stringify(e)));
  const calls = events.reduce<readonly Call[]>((all, e) => (e ? apply(all, e) : all), []);
  test("events become calls", () => {
    expect(calls).toMatchObject([{ output: "a\nb\n", state: "failed", exitCode: 2, seconds: 0.5 }]);
  });
  test("a replayed call counts once", () => {
    expect(apply(calls, { ...began, id: "1", tool: "x" })).toHaveLength(1);
  });
  test("only the end of a long output is kept", () => {
    const long = apply(calls, { type: "output", id: "1", text: "x".repeat(50_000), from: 4 });
    expect(long[0]?.pieces).toEqual([{ from: 30_004, text: "x".repeat(20_000) }]);
    expect(long[0]?.output).toMatch(/^\[30,004 characters left out\]\nx{20000}$/);
  });
  test("what is no event is dropped", () => {
    expect(parseEvent("nope")).toBeNull();
    expect(parseEvent('{"type":"other","id":"1"}')).toBeNull();
  });
  const all = (...told: ActivityEvent[]) => told.reduce<readonly Call[]>(apply, []);
  const command = "cat <<'E'\n```\nx\n```\nE";
  const call: ActivityEvent = {
    ...began,
    arguments: { command, cwd: "/tmp" },
  };
  test("why a call ended is kept beside what it printed", () => {
    const [ended] = all(
      call,
      { type: "output", id: "b1-1", text: "out\n", from: 0 },
      { ...finished, ending: "timed_out", error: true, notes: ["[timed out after 5 s] …"] },
    );
    expect(ended).toMatchObject({ output: "out\n", notes: ["[timed out after 5 s] …"], state: "failed" });
    expect(stateOf(ended as Call)).toBe("timed out");
    const [killed] = all(call, { ...finished, ending: "killed", error: true, signal: "SIGSEGV" });
    expect(codeOf(killed as Call)).toBe("SIGSEGV");
    const [failed] = all(call, { ...finished, ending: "failed", error: true, exit_code: 3 });
    expect([stateOf(failed as Call), codeOf(failed as Call)]).toEqual(["failed", "exit code 3"]);
  });
  test("a piece that is told again is not shown twice, and what is left out is counted", () => {
    const [read] = all(
      call,
      { type: "output", id: "b1-1", text: "😀a\n", from: 0 },
      { type: "output", id: "b1-1", text: "😀a\nb\n", from: 0 },
      { type: "output", id: "b1-1", text: "b\n", from: 3 },
      { type: "output", id: "b1-1", text: "end", from: 1005 },
    );
    expect(read?.output).toBe("😀a\nb\n[1,000 characters left out]\nend");
  });
  test("a call that another run of the service began does not run for ever", () => {
    const [lost] = all(call, { type: "service", id: "b2" });
    expect(stateOf(lost as Call)).toBe("end not known");
    const [told] = all(call, { type: "service", id: "b2" }, call);
    expect(stateOf(told as Call)).toBe("running");
    const [ended] = all(call, { ...finished, ending: "interrupted", error: true }, call);
    expect(stateOf(ended as Call)).toBe("running");
  });
  test("what is no call is shown in words, and is not copied", () => {
    const note = { type: "note" as const, id: "note-1", kind: "lifecycle", text: "Sandbox created.", at: 1 };
    const calls = all(note, note);
    expect(calls.map((one) => one.note)).toEqual(["Sandbox created."]);
    expect(asMarkdown(calls)).toBe("");
  });
  test("the whole command is copied, in a fence that nothing in it ends", () => {
    const calls = all(call, { ...finished, ending: "done", notes: ["a note"], result: "said" });
    expect(asMarkdown(calls)).toContain(`\n\`\`\`\`bash\n${command}\n\`\`\`\`\n`);
    expect(asMarkdown(calls)).toContain("- cwd: /tmp");
    expect(asMarkdown(calls)).toContain("a note");
    expect(asMarkdown(calls)).toContain("```\nsaid\n```");
    expect(gist(calls[0] as Call)).toBe("cat <<'E' …");
  });
  test("a fence in the output does not end the block", () => {
    const fenced = apply(calls, { type: "output", id: "1", text: "```", from: 4 });
    expect(asMarkdown(fenced)).toContain("````\na\nb\n```\n````");
  });
  test("an edit shows only what changed as changed", () => {
    expect(diffOf("a\nb\nc", "a\nx\ny\nc").map((l) => l.sign + l.text)).toEqual([
      " a",
      "-b",
      "+x",
      "+y",
      " c",
    ]);
    expect(diffOf("", "a").map((l) => l.sign + l.text)).toEqual(["+a"]);
  });
  test("changes in two places leave what is between them as it is", () => {
    expect(diffOf("a\nb\nc\nd\ne", "a\nB\nc\nD\ne").map((l) => l.sign + l.text)).toEqual([
      " a",
      "-b",
      "+B",
      " c",
      "-d",
      "+D",
      " e",
    ]);
  });
  test("texts that are slow to compare are shown whole, in time", () => {
    const [a, b] = ["x", "y"].map((c) => Array.from({ length: 4_000 }, (_, i) => c + i).join("\n"));
    const began = performance.now();
    expect(diffOf(a as string, b as string)).toHaveLength(8_000);
    expect(performance.now() - began).toBeLessThan(5_000);
  });
  const file = {
    path: "/tmp/x",
    before: "0".repeat(64),
    after: "1".repeat(64),
    size_before: 9,
    size_after: 9,
    kept: true,
    reason: "",
    line: 40,
    text_before: "a\nold",
    text_after: "a\nnew",
    cut_before: 0,
    cut_after: 0,
  };
  test("a change is shown with the lines around it, a large file by its size only", () => {
    const wrote: ActivityEvent = {
      ...began,
      tool: "create_file",
      arguments: { path: "/tmp/x", content: "…" },
    };
    const [shown] = all(wrote, { ...finished, files: [file] });
    expect(editOf(shown as Call)).toEqual({ before: "a\nold", after: "a\nnew", line: 40 });
    const [large] = all(wrote, { ...finished, files: [{ ...file, text_before: null, text_after: null }] });
    expect(editOf(large as Call)).toBeNull();
    const [made] = all(wrote, {
      ...finished,
      files: [{ ...file, before: null, text_before: null, text_after: null }],
    });
    expect(editOf(made as Call)).toEqual({ before: "", after: "…", line: 1 });
    const undo = { type: "undo", id: "b1-1", path: "/tmp/x", undone: true, at: 0 } as const;
    expect(all(wrote, { ...finished, files: [file] }, undo)[0]?.undone).toBe(true);
  });
});

test("a panel is on the screen once", () => {
  expect(choose(["files", "terminal"], 1, "files")).toEqual({ panes: ["files", "terminal"], front: 0 });
  expect(choose(["files", "terminal"], 1, "browser")).toEqual({ panes: ["files", "browser"], front: 1 });
  expect(choose(["files"], 1, "browser")).toEqual({ panes: ["browser"], front: 0 });
});

test("names from the sandbox obey nothing", () => {
  expect(shownName("a\nb\u202etxt.exe\u0000")).toBe("a␊b\ufffdtxt.exe␀");
});

test("numbers as a person reads them", () => {
  expect([bytes(0), bytes(1536), bytes(5e9), bytes(-1)]).toEqual(["0 B", "1.5 KB", "4.7 GB", ""]);
  expect([seconds(1.23), seconds(75), seconds(3700)]).toEqual(["1.2 s", "1 min 15 s", "1 h 1 min"]);
  expect(ago(1000, 1_000_000 + 300_000)).toBe("5 min ago");
  expect(ago("2026-01-01T00:00:00Z", Date.parse("2026-01-01T02:00:00Z"))).toBe("2 h ago");
});

test("the size of a file is read from either kind of answer", () => {
  const answer = (status: number, headers: Record<string, string>) => ({
    status,
    headers: new Headers(headers),
  });
  expect(sizeOf(answer(206, { "content-range": "bytes 0-9/1234", "content-length": "10" }))).toBe(1234);
  expect(sizeOf(answer(200, { "content-length": "77" }))).toBe(77);
  expect(sizeOf(answer(200, {}))).toBeNull();
});

test("paths of the sandbox are found among the chat's files", () => {
  expect(chatPath("/mnt/user-data/outputs/a/b.md")).toBe("a/b.md");
  expect(chatPath("/home/assistant/x.py")).toBe("x.py");
  expect(chatPath("/etc/passwd")).toBeNull();
  expect(chatPath("x")).toBe("x");
  expect(chatPath("/mnt/user-data/outputs/sub/")).toBe("sub/");
  for (const path of [
    "/mnt/user-data/outputs/../../../../files/other/secret.txt",
    "/home/assistant/a/../../x",
    "../../files/other/secret.txt",
    "/mnt/user-data/outputs//x",
  ])
    expect(chatPath(path)).toBeNull();
});

describe("a link in a file", () => {
  test.each([
    ["b.md", "sub/b.md"],
    ["./b%20c.md?q#part", "sub/b c.md"],
    ["../b.md", "b.md"],
    ["../../../b.md", "b.md"],
    ["..\\b.md", "b.md"],
    ["deep/", "sub/deep/"],
    ["/mnt/user-data/outputs/x.md", "x.md"],
    ["100%25.md", "sub/100%.md"],
    ["inv%FF.txt", "sub/inv\udcff.txt"],
    ["..%255c..%252fx", "sub/..%5c..%2fx"],
    ["a%5c..%5cx", "sub/a\\..\\x"],
  ])("%s leads to %s", (href, path) => {
    expect(targetOf(href, "sub/a.md")).toBe(path);
  });
  test.each([
    "..%2f..%2ffiles%2fother%2fsecret.txt",
    "..%2F..%2Fapi%2Fsandboxes",
    "x%2fy",
    "%2fetc%2fpasswd",
    "/mnt/user-data/outputs/..%2f..%2fx",
    "/mnt/user-data/outputs/../../x",
    "/raw/capability/thief.html",
    "\\raw\\capability\\thief.html",
    "a//b",
  ])("%s leads out", (href) => {
    expect(targetOf(href, "sub/a.md")).toBeNull();
  });
});

test("the frame can ask for data of the PDF viewer and nothing else", () => {
  expect(ASSET_NAME.test("pdf/cmaps/UniGB-UCS2-H.bcmap")).toBe(true);
  for (const name of [
    "../../files/x",
    "pdf/cmaps/../../x",
    "pdf/cmaps/a/b",
    "pdf/cmaps/..",
    "manifest.json",
    "pdf/other/a",
  ]) {
    expect(ASSET_NAME.test(name)).toBe(false);
  }
});

test("columns and bytes have their names", () => {
  expect([0, 25, 26, 701, 702].map(columnName)).toEqual(["A", "Z", "AA", "ZZ", "AAA"]);
  expect(hexLines(new Uint8Array([0x41, 0x00]), 16)).toMatch(/^00000010 {2}41 00 +A·\n$/);
});
