/** Text that a program printed, as rows of runs that look alike. */
import { shownName } from "../common/format";

/** A number of the palette, or `#rrggbb`. */
export type Colour = number | string;

export interface Run {
  text: string;
  fg?: Colour;
  bg?: Colour;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  struck?: boolean;
  inverse?: boolean;
}

export type TextRow = readonly Run[];

/** Whether only a terminal knows what the text looks like. */
export const needsTerminal = (text: string): boolean =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what a terminal obeys
  /[\u001b\u009b\u0008\u000b\u000c]|\r(?!\n)/.test(text);

const shown = (text: string): string => text.split("\t").map(shownName).join("\t");

export const plainRows = (text: string): TextRow[] => {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.map((line) => [{ text: shown(line) }]);
};

/** Control and direction marks that a terminal leaves in place are shown, never obeyed. */
export const safeRows = (rows: readonly TextRow[]): TextRow[] =>
  rows.map((row) => row.map((run) => ({ ...run, text: shown(run.text) })));

const CHANNEL = [0, 95, 135, 175, 215, 255];

/** A colour of the palette above the first 16, as all terminals have it. */
export function paletteColour(number: number): string {
  const hex = (...parts: number[]) => `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  if (number >= 232) {
    const grey = 8 + (number - 232) * 10;
    return hex(grey, grey, grey);
  }
  const cube = number - 16;
  const at = (place: number) => CHANNEL[Math.floor(cube / place) % 6] ?? 0;
  return hex(at(36), at(6), at(1));
}
