/** State that a browser keeps, and state that follows what a person chooses. */
import { beforeEach, describe, expect, test, vi } from "vitest";

const kept = new Map<string, string>();
const store = {
  getItem: (name: string) => kept.get(name) ?? null,
  setItem: (name: string, value: string) => void kept.set(name, value),
};

beforeEach(() => {
  kept.clear();
  vi.resetModules();
  vi.stubGlobal("localStorage", store);
});

describe("a stored value", () => {
  test("is there again at the next visit", async () => {
    const { isNumber, stored } = await import("../src/common/stored");
    stored("x", 1, isNumber).value = 7;
    expect(stored("x", 1, isNumber).value).toBe(7);
  });
  test.each(["{", '"7"', "null", "[7]"])("that is broken is forgotten: %s", async (broken) => {
    kept.set("cubicle.x", broken);
    const { isNumber, stored } = await import("../src/common/stored");
    expect(stored("x", 1, isNumber).value).toBe(1);
  });
  test("works without a store", async () => {
    const refuse = () => {
      throw new Error("refused");
    };
    vi.stubGlobal("localStorage", { getItem: refuse, setItem: refuse });
    const { isBoolean, stored } = await import("../src/common/stored");
    const value = stored("x", false, isBoolean);
    value.value = true;
    expect(value.value).toBe(true);
  });
  test("one of several names is no other name", async () => {
    const { isOneOf } = await import("../src/common/stored");
    const valid = isOneOf("auto", "dark");
    expect([valid("dark"), valid("light"), valid(null), valid(["dark"])]).toEqual([
      true,
      false,
      false,
      false,
    ]);
  });
});

describe("panels", () => {
  const layout = () => import("../src/workspace/layout");
  test("split and join; the one in front stays", async () => {
    kept.set("cubicle.panes", '["terminal"]');
    const { front, panes, toggleSplit } = await layout();
    toggleSplit();
    expect([panes.value, front.value]).toEqual([["terminal", "now"], 1]);
    toggleSplit();
    expect([panes.value, front.value]).toEqual([["now"], 0]);
  });
  test("a new visitor follows; what is chosen takes the place of what follows, and one call follows again", async () => {
    const { followModel, following, front, panes, showPanel } = await layout();
    expect([panes.value, front.value, following.value]).toEqual([["activity", "now"], 1, true]);
    showPanel("activity");
    showPanel("files");
    expect([panes.value, front.value, following.value]).toEqual([["activity", "files"], 1, false]);
    followModel();
    expect([panes.value, front.value, following.value]).toEqual([["activity", "now"], 1, true]);
  });
  test("closing one leaves the other", async () => {
    const { closePane, panes } = await layout();
    closePane(0);
    expect(panes.value).toEqual(["now"]);
  });
  test("neither of two is moved off the screen", async () => {
    const { moveSplit, share } = await layout();
    moveSplit(0.01);
    expect(share.value).toBe(0.2);
    moveSplit(3);
    expect(share.value).toBe(0.8);
  });
  test.each(['["files","files"]', '["nowhere"]', "[]", '["files","browser","agents"]'])(
    "a layout that cannot be is not shown: %s",
    async (broken) => {
      kept.set("cubicle.panes", broken);
      const { panes } = await layout();
      expect(panes.value).toEqual(["activity", "now"]);
    },
  );
});

test("the font of the terminal stays readable", async () => {
  const { changeFont, fontSize } = await import("../src/terminal/preferences");
  changeFont(100);
  expect(fontSize.value).toBe(32);
  changeFont(-100);
  expect(fontSize.value).toBe(8);
});
