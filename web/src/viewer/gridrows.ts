/** Which rows of a table are shown, and in which order. Pure. */

export interface Order {
  column: number;
  down: boolean;
}

type Row = readonly string[];

const order = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
/** A number as tables write it: with a sign, groups of three, a currency before it or a percent sign behind it. */
const NUMBER = /^\s*[-+−]?\s*[$€£¥]?\s*(?:\d{1,3}(?:[,'\s]\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?\s*[%€]?\s*$/i;

export function numberOf(text: string): number | null {
  if (!/\d/.test(text) || text.length > 40 || !NUMBER.test(text)) return null;
  const value = Number(text.replace(/[,'\s$€£¥%]/g, "").replace("−", "-"));
  return Number.isFinite(value) ? value : null;
}

/** Numbers by their value and before texts; nothing comes last, whichever way. */
export function compare(a: string, b: string, down: boolean): number {
  if (a === "" || b === "") return Number(a === "") - Number(b === "");
  const [x, y] = [numberOf(a), numberOf(b)];
  const found = x !== null && y !== null ? x - y : x !== null ? -1 : y !== null ? 1 : order.compare(a, b);
  return down ? -found : found;
}

/** Indexes of the rows with all the words of the filter somewhere in them, in the order of a column. */
export function arranged(rows: readonly Row[], filter: string, by: Order | null): number[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (row: Row) => {
    const text = row.join("\u0000").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const found: number[] = [];
  rows.forEach((row, index) => {
    if (!words.length || has(row)) found.push(index);
  });
  if (!by) return found;
  const { column, down } = by;
  return found.sort((a, b) => compare(rows[a]?.[column] ?? "", rows[b]?.[column] ?? "", down) || a - b);
}
