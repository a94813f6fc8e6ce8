/** The line of a file that a search led to: the file is opened there, as text. */
import { signal } from "@preact/signals";

export const foundLine = signal<{ path: string; line: number } | null>(null);

export const lineIn = (path: string): number | null =>
  foundLine.value?.path === path ? foundLine.value.line : null;
