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

/** A run of lines that are alike, and are left out. */
export interface Gap {
  sign: "…";
  text: string;
}

/** The lines that differ, with some around them. */
export function hunksOf(all: readonly DiffLine[], around = 3): (DiffLine | Gap)[] {
  const near = new Uint8Array(all.length);
  all.forEach((line, i) => {
    if (line.sign !== " ") near.fill(1, Math.max(0, i - around), i + around + 1);
  });
  const shown: (DiffLine | Gap)[] = [];
  let left = 0;
  const close = () => {
    if (left) shown.push({ sign: "…", text: left === 1 ? "1 line" : `${left.toLocaleString("en")} lines` });
    left = 0;
  };
  all.forEach((line, i) => {
    if (!near[i]) left += 1;
    else {
      close();
      shown.push(line);
    }
  });
  close();
  return shown;
}
