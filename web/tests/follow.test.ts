import { signal } from "@preact/signals";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { PortOverview, PortRecord } from "../src/common/api.generated";
import type { LiveView } from "../src/live/view";
import { type Call, callOf } from "../src/workspace/calls";
import { Follower, latestUse } from "../src/workspace/follow";
import { elapsed, iconFor, nowOf, titleFor, wordsOf } from "../src/workspace/nowline";
import { take } from "../src/workspace/nowstream";

const NOW = 1_789_000_000;

const call = (id: string, tool: string, more: Partial<Call> = {}, at = NOW): Call => ({
  ...callOf({ type: "call", id, tool, description: null, arguments: {}, at }),
  ...more,
});
const file = (id: string, path: string, at = NOW, tool = "create_file"): Call =>
  call(id, tool, { arguments: { path }, state: "done", seconds: 0 }, at);

const overview = (more: Partial<PortOverview> = {}): PortOverview => ({
  ports: [],
  sharing: false,
  note: "",
  browser: false,
  terminal: false,
  sandbox: "running",
  services: [],
  ...more,
});
const port = (number: number): PortRecord => ({
  port: number,
  process: "python3",
  address: "127.0.0.1",
  open: true,
  url: `http://${number}.localhost/`,
  link: `http://${number}.localhost/`,
  public: null,
});

describe("what the model uses", () => {
  test("the newest call that shows something counts", () => {
    const written = file("b", "/mnt/user-data/outputs/report.md");
    expect(latestUse([call("a", "bash_tool"), written])?.focus).toEqual({
      kind: "file",
      path: "report.md",
      call: "b",
    });
    expect(latestUse([written, call("c", "bash_tool")])?.focus).toEqual({ kind: "command", call: "c" });
  });
  test.each([
    ["a file that is being written", call("a", "create_file", { arguments: { path: "/home/assistant/a" } })],
    ["a file of the system", file("a", "/etc/passwd")],
    ["a way up", file("a", "/home/assistant/../../etc/passwd")],
    ["a folder that is looked at", file("a", "/home/assistant/project", NOW, "view")],
    ["a note", call("a", "takeover", { note: "Ann opened the browser" })],
  ])("%s shows nothing", (_name, one) => {
    expect(latestUse([one])).toBeNull();
  });
});

describe("following", () => {
  const calls = signal<readonly Call[]>([]);
  const ports = signal<PortOverview>(overview({ sandbox: "" }));
  const used = signal(0);
  const live = {
    usedAt: used,
    attached: false,
    driving: false,
    connect: vi.fn(),
    dispose: vi.fn(),
    show: vi.fn(),
  };
  let follower: Follower;
  let stop: () => void;
  beforeEach(() => {
    vi.useFakeTimers({ now: NOW * 1000 });
    vi.stubGlobal("document", Object.assign(new EventTarget(), { visibilityState: "visible" }));
    vi.clearAllMocks();
    calls.value = [];
    ports.value = overview({ sandbox: "" });
    used.value = 0;
    follower = new Follower({
      calls,
      overview: ports,
      showing: signal(true),
      watch: async () => live as unknown as LiveView,
    });
    stop = follower.start();
  });
  afterEach(() => {
    stop();
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });
  const kind = () => follower.focus.value.kind;

  test("goes from a command to the file, to the port and to the browser", async () => {
    expect(kind()).toBe("none");
    ports.value = overview();
    calls.value = [call("a", "bash_tool")];
    expect(kind()).toBe("command");
    calls.value = [...calls.value, file("b", "/home/assistant/a.py", NOW + 1)];
    expect(follower.focus.value).toEqual({ kind: "file", path: "a.py", call: "b" });
    vi.setSystemTime((NOW + 2) * 1000);
    ports.value = overview({ ports: [port(8000)] });
    expect(follower.focus.value).toEqual({ kind: "port", port: 8000 });
    vi.setSystemTime((NOW + 3) * 1000);
    ports.value = overview({ ports: [port(8000)], browser: true });
    await vi.advanceTimersByTimeAsync(0);
    expect(kind()).toBe("browser");
    expect(live.connect).toHaveBeenCalledOnce();
    expect(live.show).toHaveBeenCalledWith(320, false);
  });
  test("a command that only drives the browser does not take its place", async () => {
    ports.value = overview();
    ports.value = overview({ browser: true });
    await vi.advanceTimersByTimeAsync(0);
    calls.value = [call("a", "bash_tool", {}, NOW + 1)];
    expect(kind()).toBe("browser");
    await vi.advanceTimersByTimeAsync(1_200);
    used.value = Date.now();
    await vi.advanceTimersByTimeAsync(5_000);
    expect(kind()).toBe("browser");
    calls.value = [...calls.value, call("b", "bash_tool", {}, NOW + 7)];
    await vi.advanceTimersByTimeAsync(1_600);
    expect(follower.focus.value).toEqual({ kind: "command", call: "b" });
  });
  test("what was pinned stays, and one call follows again", () => {
    calls.value = [call("a", "bash_tool")];
    follower.pin();
    calls.value = [...calls.value, file("b", "/home/assistant/a.py", NOW + 1)];
    expect(follower.shown).toEqual({ kind: "command", call: "a" });
    follower.unpin();
    expect(follower.shown).toMatchObject({ kind: "file", path: "a.py" });
  });
  test("ports that were open before show nothing; a browser that ends leaves the newest call", async () => {
    calls.value = [call("a", "bash_tool")];
    ports.value = overview({ ports: [port(8000)] });
    expect(kind()).toBe("command");
    vi.setSystemTime((NOW + 2) * 1000);
    ports.value = overview({ browser: true });
    await vi.advanceTimersByTimeAsync(0);
    expect(kind()).toBe("browser");
    ports.value = overview();
    expect(follower.focus.value).toEqual({ kind: "command", call: "a" });
    expect(live.dispose).toHaveBeenCalled();
  });
});

test("a browser that nobody uses is let go of, and taken again when a call runs", async () => {
  vi.useFakeTimers({ now: NOW * 1000 });
  vi.stubGlobal("document", Object.assign(new EventTarget(), { visibilityState: "visible" }));
  const calls = signal<readonly Call[]>([]);
  const ports = signal(overview());
  const made: { dispose: ReturnType<typeof vi.fn> }[] = [];
  const follower = new Follower({
    calls,
    overview: ports,
    showing: signal(false),
    watch: async () => {
      const live = { usedAt: signal(0), attached: false, driving: false, dispose: vi.fn() };
      made.push(live);
      return { ...live, connect: () => undefined, show: () => undefined } as unknown as LiveView;
    },
  });
  const stop = follower.start();
  ports.value = overview({ browser: true });
  await vi.advanceTimersByTimeAsync(0);
  expect(made.length).toBe(1);
  await vi.advanceTimersByTimeAsync(75_000);
  expect(made[0]?.dispose).toHaveBeenCalledOnce();
  expect(follower.live.value).toBeNull();
  calls.value = [call("a", "bash_tool", {}, NOW + 80)];
  await vi.advanceTimersByTimeAsync(0);
  expect(made.length).toBe(2);
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a view whose script could not be had is asked for again", async () => {
  vi.useFakeTimers({ now: NOW * 1000 });
  vi.stubGlobal("document", Object.assign(new EventTarget(), { visibilityState: "visible" }));
  const live = { usedAt: signal(0), attached: false, dispose: vi.fn(), connect: vi.fn(), show: vi.fn() };
  const watch = vi.fn(async () => live as unknown as LiveView).mockRejectedValueOnce(new Error("no network"));
  const ports = signal(overview());
  const follower = new Follower({ calls: signal([]), overview: ports, showing: signal(true), watch });
  const stop = follower.start();
  ports.value = overview({ browser: true });
  await vi.advanceTimersByTimeAsync(0);
  expect(follower.live.value).toBeNull();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(watch).toHaveBeenCalledTimes(2);
  expect(live.connect).toHaveBeenCalledOnce();
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("the line in the header", () => {
  const at = NOW * 1000;
  const outside = { sandbox: "running", waiting: "" };
  test("says what is done, and for how long", () => {
    const now = nowOf([call("a", "bash_tool", { description: "Train the forecast model" })], outside);
    expect(wordsOf(now, at + 16_400)).toBe("Working: Train the forecast model · 0:16");
    expect(titleFor(now, "Workspace · c")).toBe("▶ Train the forecast model · Workspace · c");
    expect(iconFor(now)).toMatch(/^data:image\/svg\+xml,/);
  });
  test("a call without a description is told by its file or its command", () => {
    const told = (one: Call) => wordsOf(nowOf([one], outside), at);
    expect(told(call("a", "str_replace", { arguments: { path: "/home/assistant/a.py" } }))).toBe(
      "Working: editing a.py · 0:00",
    );
    expect(told(call("a", "bash_tool", { arguments: { command: `\n${"x".repeat(300)}` } }))).toMatch(
      /^Working: x{79}… · 0:00$/,
    );
  });
  test("idle, stopped, waiting", () => {
    const done = call("a", "bash_tool", { state: "done", seconds: 5 });
    expect(wordsOf(nowOf([done], outside), at)).toMatch(/^Idle since \d/);
    expect(wordsOf(nowOf([], outside), at)).toBe("Idle");
    expect(wordsOf(nowOf([done], { sandbox: "stopped", waiting: "" }), at)).toBe("Stopped");
    expect(
      wordsOf(nowOf([call("b", "bash_tool")], { sandbox: "running", waiting: "Waiting for you" }), at),
    ).toBe("Waiting for you");
    expect(iconFor(nowOf([], outside))).toBeNull();
  });
  test("hours, and a clock that is behind", () => {
    expect(elapsed(at, at + 3_725_000)).toBe("1:02:05");
    expect(elapsed(at, at - 5_000)).toBe("0:00");
  });
  test("a page of one panel puts the same together from the stream", () => {
    const events = [
      { type: "call", id: "a", tool: "bash_tool", description: "Build", arguments: {}, at: NOW },
      { type: "output", id: "a", from: 0, text: "x" },
      { type: "note", id: "n", kind: "upload", text: "", at: NOW },
    ];
    let calls = events.map((event) => JSON.stringify(event)).reduce(take, []);
    expect(wordsOf(nowOf(calls, outside), at)).toBe("Working: Build · 0:00");
    expect(take(take(calls, '{"type":"service","id":"s"}'), "no JSON")).toEqual([]);
    calls = take(calls, '{"type":"end","id":"a","seconds":2,"error":false}');
    expect(nowOf(calls, outside)).toEqual({ kind: "idle", text: "", since: at + 2_000 });
  });
});
