import { expect, test } from "vitest";
import { leadsOut } from "../src/viewer/archive";

test.each(["../x", "a/../../x", "/etc/x", "\\x", "C:\\x", "c:x", "a\\..\\x", ".."])(
  "%s leads out",
  (name) => {
    expect(leadsOut(name)).toBe(true);
  },
);

test.each(["x", "a/b", "./a", "..x", "a../b", "a/...", "ab:c/d"])("%s stays inside", (name) => {
  expect(leadsOut(name)).toBe(false);
});
