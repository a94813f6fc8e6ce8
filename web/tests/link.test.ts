import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Backoff } from "../src/common/backoff";
import { HttpError } from "../src/common/http";
import { Link, type LinkOptions } from "../src/common/link";

/** What the page sees of a socket; the other end is the test. */
class Socket {
  static readonly OPEN = 1;
  readyState = 0;
  binaryType = "";
  sent: unknown[] = [];
  onopen?: () => void;
  onmessage?: (event: { data: unknown }) => void;
  onclose?: (event: { code: number; reason: string }) => void;
  opens(): void {
    this.readyState = 1;
    this.onopen?.();
  }
  ends(code: number, reason = ""): void {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }
  send(data: unknown): void {
    this.sent.push(data);
  }
  close(): void {
    this.readyState = 2;
  }
}

describe("back-off", () => {
  test("doubles up to its most, and starts again after a reset", () => {
    const backoff = new Backoff(500, 4000, () => 1);
    expect([0, 0, 0, 0, 0].map(() => backoff.next())).toEqual([500, 1000, 2000, 4000, 4000]);
    backoff.reset();
    expect(backoff.next()).toBe(500);
  });
  test("jitter takes away a quarter at most", () => {
    expect(new Backoff(1000, 4000, () => 0).next()).toBe(750);
  });
});

describe("a connection that comes back", () => {
  let sockets: Socket[] = [];
  let condition = "running";
  const make = (prepare: LinkOptions["prepare"] = async () => undefined, silence = 0) =>
    new Link({
      prepare,
      condition: async () => condition,
      open: () => {
        const socket = new Socket();
        sockets.push(socket);
        return socket as unknown as WebSocket;
      },
      onOpen: () => undefined,
      onMessage: () => undefined,
      silence,
      backoff: new Backoff(1000, 8000, () => 1),
    });
  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("WebSocket", Socket);
    vi.stubGlobal("document", { visibilityState: "visible" });
    sockets = [];
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  test("waits, says why, and connects again", async () => {
    const link = make();
    link.start();
    await vi.advanceTimersByTimeAsync(0);
    sockets[0]?.opens();
    expect(link.state.value.kind).toBe("open");
    sockets[0]?.ends(1011, "The browser ended.");
    expect(link.state.value).toMatchObject({ kind: "waiting", attempt: 1, reason: "The browser ended." });
    await vi.advanceTimersByTimeAsync(1000);
    expect(sockets.length).toBe(2);
    sockets[1]?.opens();
    expect(link.state.value.kind).toBe("open");
  });

  test("waits longer while it fails at once, and briefly again after a connection that held", async () => {
    const link = make();
    link.start();
    await vi.advanceTimersByTimeAsync(0);
    for (const wait of [1000, 2000, 4000]) {
      sockets.at(-1)?.opens();
      sockets.at(-1)?.ends(1006);
      expect(link.state.value).toMatchObject({ kind: "waiting", until: Date.now() + wait });
      await vi.advanceTimersByTimeAsync(wait);
    }
    sockets.at(-1)?.opens();
    await vi.advanceTimersByTimeAsync(6000);
    sockets.at(-1)?.ends(1006);
    expect(link.state.value).toMatchObject({ kind: "waiting", until: Date.now() + 1000 });
  });

  test("does not knock again where it may not enter", async () => {
    const link = make();
    link.start();
    await vi.advanceTimersByTimeAsync(0);
    sockets[0]?.ends(4401);
    expect(link.state.value).toMatchObject({ kind: "closed", signIn: true });
    await vi.advanceTimersByTimeAsync(60_000);
    expect(sockets.length).toBe(1);
  });

  test("a refused start says so; one that failed is tried again", async () => {
    const refused = make(() => Promise.reject(new HttpError(401, "no")));
    refused.start();
    await vi.advanceTimersByTimeAsync(0);
    expect(refused.state.value).toMatchObject({ kind: "closed", signIn: true });
    let tries = 0;
    const failing = make(() => {
      tries += 1;
      return tries < 3 ? Promise.reject(new HttpError(503, "busy")) : Promise.resolve();
    });
    failing.start();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(sockets.length).toBe(1);
  });

  test("a computer that was stopped is not started again, but found when it is up", async () => {
    const asked: boolean[] = [];
    const link = make(async (_signal, wake) => {
      asked.push(wake);
    });
    link.start();
    await vi.advanceTimersByTimeAsync(0);
    sockets[0]?.opens();
    condition = "stopped";
    sockets[0]?.ends(4410, "The operator stopped this sandbox.");
    const told = { kind: "asleep", reason: "The operator stopped this computer.", made: true };
    expect(link.state.value).toEqual(told);
    await vi.advanceTimersByTimeAsync(120_000);
    expect(link.state.value).toEqual(told);
    expect(asked).toEqual([false]);
    condition = "running";
    await vi.advanceTimersByTimeAsync(4_000);
    expect(asked).toEqual([false, false]);
    expect(sockets.length).toBe(2);
  });

  test("only a person's wish wakes it, or makes it", async () => {
    condition = "none";
    const asked: boolean[] = [];
    const link = make((_signal, wake) => {
      asked.push(wake);
      if (wake) return Promise.resolve();
      return Promise.reject(new HttpError(404, "none", "urn:cubicle:problem:no-sandbox"));
    });
    link.start();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(link.state.value).toMatchObject({ kind: "asleep", made: false });
    expect(asked).toEqual([false]);
    link.start(true);
    await vi.advanceTimersByTimeAsync(0);
    expect(asked).toEqual([false, true]);
    expect(sockets.length).toBe(1);
  });

  test("nothing looks at a computer that sleeps while the page is not seen, nor once it is left", async () => {
    condition = "running";
    vi.stubGlobal("document", { visibilityState: "hidden" });
    const link = make(() => Promise.reject(new HttpError(409, "sleeps", "urn:cubicle:problem:asleep")));
    link.start();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(link.state.value).toEqual({ kind: "asleep", reason: "sleeps", made: true });
    link.stop();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(link.state.value.kind).toBe("closed");
  });

  test("a connection that went silent is given up", async () => {
    const link = make(undefined, 15_000);
    link.start();
    await vi.advanceTimersByTimeAsync(0);
    sockets[0]?.opens();
    await vi.advanceTimersByTimeAsync(14_000);
    sockets[0]?.onmessage?.({ data: "beat" });
    await vi.advanceTimersByTimeAsync(14_000);
    expect(link.state.value.kind).toBe("open");
    await vi.advanceTimersByTimeAsync(1_500);
    expect(link.state.value.kind).toBe("waiting");
  });

  test("nothing is sent while it is not open", async () => {
    const link = make();
    link.start();
    expect(link.send("x")).toBe(false);
    await vi.advanceTimersByTimeAsync(0);
    sockets[0]?.opens();
    expect(link.send("x")).toBe(true);
    expect(sockets[0]?.sent).toEqual(["x"]);
  });
});
