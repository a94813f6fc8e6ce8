/** A signal that is kept in this browser between visits; a broken or refused store only loses the memory of it. */
import { effect, type Signal, signal } from "@preact/signals";

export function stored<T>(key: string, first: T, valid: (value: unknown) => value is T): Signal<T> {
  const name = `cubicle.${key}`;
  let start = first;
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(name) ?? "null");
    if (valid(kept)) start = kept;
  } catch {
    // no store, or not JSON
  }
  const value = signal(start);
  effect(() => {
    const now = JSON.stringify(value.value);
    try {
      localStorage.setItem(name, now);
    } catch {
      // no store
    }
  });
  return value;
}

export const isBoolean = (value: unknown): value is boolean => typeof value === "boolean";
export const isNumber = (value: unknown): value is number =>
  typeof value === "number" && Number.isFinite(value);
export function isOneOf<T extends string>(...all: T[]): (value: unknown) => value is T {
  return (value): value is T => all.includes(value as T);
}
