import { describe, expect, it } from "vitest";
import { addressOf, type State, shownPath } from "../src/card/address";
import type { FrameRecord, Step } from "../src/common/api.generated";
import { marksOf, TimelineModel } from "../src/timeline/model";

const frame = (at: number): FrameRecord => ({
  id: `f${at}`,
  at,
  width: 1280,
  height: 800,
  url: "http://a/",
  title: "A",
});
const call = (n: number, at: number): Step => ({
  n,
  at,
  kind: "call",
  call: `c${n}`,
  tool: "bash_tool",
  title: "t",
});
const end = (n: number, at: number, of: number, error = false): Step => ({
  n,
  at,
  kind: "end",
  call: `c${of}`,
  error,
  exit_code: error ? 3 : 0,
  seconds: 1,
  text: "out",
});

describe("the time line", () => {
  it("puts entries and pictures in the order of their time", () => {
    const model = new TimelineModel();
    model.add({
      entries: [call(1, 10), end(2, 14, 1)],
      next: 2,
      more: false,
      frames: [frame(12), frame(16)],
    });
    expect(model.moments).toEqual([
      { at: 10, row: 0, frame: -1 },
      { at: 12, row: 0, frame: 0 },
      { at: 14, row: 0, frame: 0 },
      { at: 16, row: 0, frame: 1 },
    ]);
    expect(model.momentOf(0)).toBe(2);
    expect(model.since).toBe(16_000);
    expect(model.rows[0]?.end?.text).toBe("out");
  });

  it("takes what comes later, each picture and each end once", () => {
    const model = new TimelineModel();
    model.add({ entries: [call(1, 10)], next: 1, more: false, frames: [frame(11)] });
    expect(model.add({ entries: [], next: 1, more: false, frames: [frame(11)] })).toBe(false);
    model.add({ entries: [end(2, 12, 1), end(3, 13, 1, true)], next: 3, more: false, frames: [frame(13)] });
    expect(model.frames.length).toBe(2);
    expect(model.rows[0]?.end?.error).toBe(false);
    expect(model.next).toBe(3);
  });

  it("passes over an end whose beginning is no longer kept", () => {
    const model = new TimelineModel();
    model.add({ entries: [end(9, 1, 8)], next: 9, more: false, frames: [] });
    expect(model.rows).toEqual([]);
    expect(model.moments).toEqual([]);
  });

  it("waits no longer than two seconds for what comes next", () => {
    const model = new TimelineModel();
    model.add({ entries: [call(1, 10), call(2, 1000)], next: 2, more: false, frames: [] });
    expect(model.pause(0, 1)).toBe(2000);
    expect(model.pause(0, 4)).toBe(500);
  });

  it("marks what failed before what was done, and that before pictures", () => {
    const model = new TimelineModel();
    model.add({
      entries: [call(1, 10), end(2, 20, 1, true)],
      next: 2,
      more: false,
      frames: [frame(12), frame(14), frame(16)],
    });
    expect(marksOf(model, 5)).toEqual(["call", "frame", "frame", "frame", "bad"]);
    expect(marksOf(model, 1)).toEqual(["bad"]);
    expect(marksOf(new TimelineModel(), 3)).toEqual(["", "", ""]);
  });
});

describe("a card", () => {
  const state: State = {
    chat: "a/b",
    base: "https://box.example/p/",
    key: "1.k",
    expires: 1,
    sandbox: "running",
    browser: false,
    ports: [],
  };

  it("shows files of the chat's folders, and no others", () => {
    expect(shownPath("/mnt/user-data/outputs/a.md")).toBe("outputs/a.md");
    expect(shownPath("/home/assistant/x/y.py")).toBe("workspace/x/y.py");
    for (const path of [
      "",
      "/etc/passwd",
      "/mnt/user-data/../x",
      "/home/assistant/a/../../x",
      "/home/assistant/",
    ])
      expect(shownPath(path)).toBe("");
  });

  it("names its chat and its key in each address", () => {
    expect(addressOf(state, "browser", "")).toBe("https://box.example/p/browser/a%2Fb/?key=1.k");
    expect(addressOf(state, "file", "outputs/ü a.md")).toBe(
      "https://box.example/p/preview/a%2Fb/outputs/%C3%BC%20a.md?embed=1&key=1.k",
    );
    expect(addressOf(state, "file", "")).toBe("");
    expect(addressOf({ ...state, key: "" }, "terminal", "")).toBe("https://box.example/p/terminal/a%2Fb/?");
  });
});
