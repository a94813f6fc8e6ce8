import { describe, expect, test } from "vitest";
import {
  asOneLine,
  binaryInput,
  hello,
  INPUT_PIECE,
  input,
  needsGuard,
  parse,
  resize,
} from "../src/terminal/ttyd";

const text = (data: Uint8Array | undefined) => new TextDecoder().decode(data);

describe("messages to ttyd", () => {
  test("the first one is JSON with the size and no leading character", () => {
    expect(JSON.parse(text(hello(80, 24)))).toEqual({ AuthToken: "", columns: 80, rows: 24 });
  });
  test("a resize starts with 1", () => {
    expect(text(resize(100, 30))).toBe('1{"columns":100,"rows":30}');
  });
  test("input starts with 0 and is UTF-8", () => {
    expect(input("é").map((m) => [...m])).toEqual([[0x30, 0xc3, 0xa9]]);
  });
  test("a large paste goes in pieces that end between characters", () => {
    const long = `${"a".repeat(INPUT_PIECE - 1)}é${"b".repeat(100)}`;
    const pieces = input(long);
    expect(pieces.length).toBe(2);
    expect(pieces.map((p) => text(p.subarray(1))).join("")).toBe(long);
    for (const piece of pieces) expect(text(piece)).not.toContain("\ufffd");
  });
  test("bytes that are not text stay single bytes", () => {
    expect([...binaryInput("\u00ff\u0080")]).toEqual([0x30, 0xff, 0x80]);
  });
});

describe("messages from ttyd", () => {
  const message = (value: string) => new TextEncoder().encode(value).buffer as ArrayBuffer;
  test("output, title and preferences are told apart", () => {
    expect(parse(message("0hello"))).toEqual({ kind: "output", data: new TextEncoder().encode("hello") });
    expect(parse(message("1bash"))).toEqual({ kind: "title", title: "bash" });
    expect(parse(message("2{}"))).toEqual({ kind: "preferences", text: "{}" });
  });
  test("anything else is ignored, also nothing at all", () => {
    expect(parse(message("9x")).kind).toBe("unknown");
    expect(parse(new ArrayBuffer(0)).kind).toBe("unknown");
  });
});

describe("the guard on pastes", () => {
  test.each([
    ["ls", false],
    ["ls\n", false],
    ["ls\r\n", false],
    ["a\nb", true],
    ["a\rb", true],
    ["a\n\n", true],
  ])("%j needs it: %s", (value, needed) => {
    expect(needsGuard(value)).toBe(needed);
  });
  test("several lines become one", () => {
    expect(asOneLine("a \\\n  b\r\nc\n")).toBe("a \\ b c");
  });
});
