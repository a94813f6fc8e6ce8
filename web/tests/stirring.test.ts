import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Glances } from "../src/common/stirring";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test("the first glance is at once, and a crowd after it is one more", () => {
  const look = vi.fn();
  const glances = new Glances(look, 1000);
  glances.ask();
  expect(look).toHaveBeenCalledTimes(1);
  for (let n = 0; n < 50; n += 1) glances.ask();
  expect(look).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1000);
  expect(look).toHaveBeenCalledTimes(2);
  vi.advanceTimersByTime(10_000);
  expect(look).toHaveBeenCalledTimes(2);
});

test("nobody looks after the end", () => {
  const look = vi.fn();
  const glances = new Glances(look, 1000);
  glances.ask();
  glances.ask();
  glances.stop();
  vi.advanceTimersByTime(10_000);
  expect(look).toHaveBeenCalledTimes(1);
});
