/** Errors of the service as the pages see them, and how long they wait before the next attempt. */
import { describe, expect, test } from "vitest";
import { Backoff } from "../src/common/backoff";
import { moment } from "../src/common/format";
import { HttpError, isAsleep, isAway, isUnmade, problemOf } from "../src/common/http";

const answer = (status: number, body: unknown, type = "application/problem+json") =>
  new Response(typeof body === "string" ? body : JSON.stringify(body), {
    status,
    headers: { "content-type": type },
  });

describe("a problem", () => {
  test("is told by its reason, else its detail, else its title", async () => {
    const whole = { title: "Conflict", detail: "Wake it first.", reason: "It sleeps." };
    expect((await problemOf(answer(409, whole))).message).toBe("It sleeps.");
    expect((await problemOf(answer(409, { ...whole, reason: undefined }))).message).toBe("Wake it first.");
    expect((await problemOf(answer(409, { title: "Conflict" }))).message).toBe("Conflict");
  });
  test.each([
    ["<html>", "text/html"],
    ["{", "application/json"],
    ["null", "application/json"],
    ['{"detail": 7}', "application/json"],
  ])("that is none is told by its status: %s", async (body, type) => {
    const error = await problemOf(answer(502, body, type));
    expect([error.status, error.message, error.type]).toEqual([502, "The service answered 502.", ""]);
  });
  test("says by its type whether the computer sleeps or is not made", async () => {
    const asleep = await problemOf(answer(409, { type: "urn:cubicle:problem:asleep" }));
    const unmade = await problemOf(answer(404, { type: "urn:cubicle:problem:no-sandbox" }));
    expect([isAsleep(asleep), isUnmade(asleep)]).toEqual([true, false]);
    expect([isAsleep(unmade), isUnmade(unmade)]).toEqual([false, true]);
    expect(isAsleep(new Error("urn:cubicle:problem:asleep"))).toBe(false);
  });
  test.each([
    [0, true],
    [502, true],
    [503, true],
    [504, true],
    [500, false],
    [401, false],
  ])("of status %i passes by itself: %s", (status, away) => {
    expect(isAway(new HttpError(status, ""))).toBe(away);
  });
});

describe("the wait before an attempt", () => {
  test("doubles up to its limit, and starts again after a reset", () => {
    const backoff = new Backoff(500, 4000, () => 1);
    expect(Array.from({ length: 5 }, () => backoff.next())).toEqual([500, 1000, 2000, 4000, 4000]);
    expect(backoff.attempt).toBe(5);
    backoff.reset();
    expect(backoff.next()).toBe(500);
  });
  test("is shortened by at most a quarter", () => {
    expect(new Backoff(1000, 4000, () => 0).next()).toBe(750);
  });
});

test.each([
  [null, null],
  [undefined, null],
  ["", null],
  ["yesterday", null],
  [0, "1970-01-01T00:00:00.000Z"],
  [1.5, "1970-01-01T00:00:01.500Z"],
  ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000Z"],
])("the moment of %s is %s", (value, expected) => {
  expect(moment(value)?.toISOString() ?? null).toBe(expected);
});
