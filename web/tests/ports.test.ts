import { describe, expect, test } from "vitest";
import type { PortOverview, PortRecord } from "../src/common/api.generated";
import {
  isReachable,
  linkTo,
  Ports,
  parseOverview,
  plainAddress,
  titleOf,
  typedPath,
} from "../src/workspace/ports";

const port = (number: number, more: Partial<PortRecord> = {}): PortRecord => ({
  port: number,
  process: "vite",
  address: "127.0.0.1",
  open: true,
  url: `http://${number}-abc.localhost:8081/`,
  link: `http://${number}-abc.localhost:8081/?cubicle-key=1.2.3`,
  public: null,
  ...more,
});

const overview = (ports: PortRecord[]): PortOverview => ({
  ports,
  sharing: true,
  note: "",
  browser: false,
  terminal: false,
  sandbox: "running",
  services: [],
});

describe("addresses of a port", () => {
  test("a link keeps its key, whatever the path", () => {
    expect(linkTo(port(5173), "")).toBe("http://5173-abc.localhost:8081/?cubicle-key=1.2.3");
    expect(linkTo(port(5173), "a/b?x=1")).toBe("http://5173-abc.localhost:8081/a/b?x=1&cubicle-key=1.2.3");
  });
  test("without a key there is none", () => {
    expect(linkTo(port(80, { link: "http://80-abc.localhost:8081/" }), "x")).toBe(
      "http://80-abc.localhost:8081/x",
    );
  });
  test.each(["//evil.example/", "\\\\evil.example", "/\\evil.example", "https://evil.example/"])(
    "%s is a path and leads to no other host",
    (path) => {
      expect(new URL(linkTo(port(5173), path)).host).toBe("5173-abc.localhost:8081");
      expect(new URL(plainAddress(port(5173), path)).host).toBe("5173-abc.localhost:8081");
    },
  );
  test("what is typed may be a path or the whole address", () => {
    expect(typedPath(port(5173), " /a?b ")).toBe("a?b");
    expect(typedPath(port(5173), "http://5173-abc.localhost:8081/a")).toBe("a");
  });
  test("the address bar shows nothing that opens the port", () => {
    expect(plainAddress(port(5173), "a")).toBe("http://5173-abc.localhost:8081/a");
  });
});

describe("what is shown", () => {
  test("titles are the number and the program", () => {
    expect(titleOf(port(5173))).toBe("5173 vite");
    expect(titleOf(port(5173, { process: "" }))).toBe("5173");
  });
  test("before a port that is closed, one that is open", () => {
    const ports = new Ports("http://localhost/");
    ports.take(overview([port(80, { open: false }), port(5173)]));
    expect(ports.shown.value?.port).toBe(5173);
    ports.chosen.value = 80;
    expect(ports.shown.value?.port).toBe(80);
  });
  test("the chosen port, or the first", () => {
    const ports = new Ports("http://localhost/");
    expect(ports.shown.value).toBeNull();
    ports.take(overview([port(80), port(5173)]));
    expect(ports.shown.value?.port).toBe(80);
    ports.chosen.value = 5173;
    expect(ports.shown.value?.port).toBe(5173);
    ports.take(overview([port(80)]));
    expect(ports.shown.value?.port).toBe(80);
  });
  test.each(["", "null", "[]", "{", '{"ports":1}'])("%s is no overview", (text) => {
    expect(parseOverview(text)).toBeNull();
  });
  test("only a browser elsewhere is told that a domain is missing", () => {
    expect(isReachable("", "tools.example.org")).toBe(true);
    expect(isReachable("set PREVIEW_DOMAIN", "tools.example.org")).toBe(false);
    for (const host of ["localhost", "127.0.0.1", "[::1]", "cubicle.localhost"])
      expect(isReachable("set PREVIEW_DOMAIN", host)).toBe(true);
  });
});
