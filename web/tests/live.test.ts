import { describe, expect, test } from "vitest";
import { button, keyPlan, modifiers, toAddress, toPage, wheelPixels } from "../src/live/input";
import { parseFrame, parseMessage } from "../src/live/protocol";

function frame(header: string, jpeg = [0xff, 0xd8, 0xff], length?: number): ArrayBuffer {
  const head = new TextEncoder().encode(header);
  const data = new Uint8Array(4 + head.length + jpeg.length);
  new DataView(data.buffer).setUint32(0, length ?? head.length);
  data.set(head, 4);
  data.set(jpeg, 4 + head.length);
  return data.buffer;
}

describe("frames", () => {
  const good = JSON.stringify({ seq: 7, w: 1280, h: 800, ts: 1.5, tab: "A" });
  test("header and picture are taken apart", () => {
    const parsed = parseFrame(frame(good));
    expect(parsed).toMatchObject({ seq: 7, w: 1280, h: 800, ts: 1.5, tab: "A" });
    expect([...(parsed?.jpeg ?? [])]).toEqual([0xff, 0xd8, 0xff]);
  });
  test.each([
    ["too short", new ArrayBuffer(3)],
    ["a header longer than the message", frame(good, [1], 5000)],
    ["no picture", frame(good, [])],
    ["no JSON", frame("{")],
    ["not an object", frame("3")],
    ["no size", frame('{"seq":1,"w":0,"h":800}')],
    ["bytes that are not UTF-8", frame("").slice(0, 0)],
  ])("%s is no frame", (_name, data) => {
    expect(parseFrame(data)).toBeNull();
  });
  test("a message that is not JSON or has no type is dropped", () => {
    expect(parseMessage("{")).toBeNull();
    expect(parseMessage("[]")).toBeNull();
    expect(parseMessage('{"type":"heartbeat"}')).toEqual({ type: "heartbeat" });
  });
});

describe("where a click goes", () => {
  const box = { left: 100, top: 50, width: 640, height: 400 };
  test("the picture's scale is undone", () => {
    expect(toPage(420, 250, box, 1280, 800)).toEqual({ x: 640, y: 400 });
  });
  test("outside the picture is its edge", () => {
    expect(toPage(0, 9999, box, 1280, 800)).toEqual({ x: 0, y: 799 });
  });
  test("a picture without size does no harm", () => {
    expect(toPage(5, 5, { left: 0, top: 0, width: 0, height: 0 }, 1280, 800)).toEqual({ x: 0, y: 0 });
  });
});

const none = { altKey: false, ctrlKey: false, metaKey: false, shiftKey: false };
const press = (key: string, code: string, more: object = {}) => ({
  type: "keydown",
  key,
  code,
  location: 0,
  repeat: false,
  isComposing: false,
  ...none,
  ...more,
});

describe("keys", () => {
  test("modifiers are a sum", () => {
    expect(modifiers({ altKey: true, ctrlKey: true, metaKey: true, shiftKey: true })).toBe(15);
    expect(modifiers({ ...none, ctrlKey: true })).toBe(2);
  });
  test("a character is sent as a key, and its text comes from the input field", () => {
    expect(keyPlan(press("a", "KeyA"), false)).toMatchObject({
      do: "send",
      typed: true,
      message: { event: "down", key: "a" },
    });
  });
  test("Enter and shortcuts type nothing", () => {
    expect(keyPlan(press("Enter", "Enter"), false)).toMatchObject({ do: "send", typed: false });
    expect(keyPlan(press("a", "KeyA", { ctrlKey: true }), false)).toMatchObject({ do: "send", typed: false });
    expect(keyPlan(press("ArrowLeft", "ArrowLeft", { altKey: true }), false)).toMatchObject({ typed: false });
  });
  test("AltGr types", () => {
    expect(keyPlan(press("@", "KeyQ", { ctrlKey: true, altKey: true }), false)).toMatchObject({
      do: "send",
      typed: true,
    });
  });
  test("dead keys and input methods are left to composition", () => {
    expect(keyPlan(press("Dead", "Quote"), false)).toEqual({ do: "ignore" });
    expect(keyPlan(press("a", "KeyA", { isComposing: true }), false)).toEqual({ do: "ignore" });
  });
  test("paste and copy go through the clipboard of the person", () => {
    expect(keyPlan(press("v", "KeyV", { ctrlKey: true }), false)).toEqual({ do: "paste" });
    expect(keyPlan(press("c", "KeyC", { ctrlKey: true }), false)).toEqual({ do: "copy", cut: false });
    expect(keyPlan(press("x", "KeyX", { metaKey: true }), true)).toEqual({ do: "copy", cut: true });
  });
  test("Cmd on a Mac is Ctrl in the sandbox", () => {
    expect(keyPlan(press("a", "KeyA", { metaKey: true }), true)).toMatchObject({
      message: { modifiers: 2 },
      typed: false,
    });
    expect(keyPlan(press("Meta", "MetaLeft", { metaKey: true }), true)).toEqual({ do: "ignore" });
  });
});

test("buttons have names", () => {
  expect([0, 1, 2, 3, 4, 9].map(button)).toEqual(["left", "middle", "right", "back", "forward", "none"]);
});

test("wheel distances become pixels", () => {
  expect(wheelPixels(3, 1, 600)).toBe(120);
  expect(wheelPixels(1, 2, 600)).toBe(600);
  expect(wheelPixels(12.4, 0, 600)).toBe(12);
});

test.each([
  ["https://a.example/x", "https://a.example/x"],
  ["example.org", "https://example.org"],
  ["example.org/a b", "https://example.org/a b"],
  ["localhost:3000/x", "http://localhost:3000/x"],
  ["localhost", "http://localhost"],
  ["127.0.0.1:8000", "http://127.0.0.1:8000"],
  ["web:8080", "http://web:8080"],
  ["/mnt/user-data/outputs/a.html", "file:///mnt/user-data/outputs/a.html"],
  ["about:blank", "about:blank"],
  ["javascript:alert(1)", null],
  ["two words", null],
  ["", null],
])("the address %j is %j", (text, address) => {
  expect(toAddress(text)).toBe(address);
});
