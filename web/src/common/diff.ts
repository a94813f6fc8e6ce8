/** The lines in which two texts differ. */
import { diffArrays } from "diff";

export interface DiffLine {
  sign: "+" | "-" | " ";
  text: string;
}

/** Texts of a model can be made to be slow to compare; after that long, all of one is shown, then all of the other. */
const LIMITS = { timeout: 300, maxEditLength: 2_000 };

const lines = (text: string) => (text === "" ? [] : text.split("\n"));

export function diffOf(before: string, after: string): DiffLine[] {
  const [old, now] = [lines(before), lines(after)];
  const parts = diffArrays(old, now, LIMITS) ?? [
    { value: old, removed: true, added: false },
    { value: now, removed: false, added: true },
  ];
  return parts.flatMap((part) => {
    const sign = part.added ? "+" : part.removed ? "-" : " ";
    return part.value.map((text) => ({ sign, text }) as const);
  });
}
