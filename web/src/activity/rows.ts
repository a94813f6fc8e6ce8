/** The rows of the list: calls, folded reads, notes, days. */
import { type Call, task } from "../workspace/calls";
import { dayOf, isPicture, sentenceOf } from "./words";

export type Row =
  | { kind: "call"; key: string; call: Call; inner: boolean }
  | { kind: "reads"; key: string; calls: readonly Call[]; open: boolean }
  | { kind: "refusals"; key: string; calls: readonly Call[]; open: boolean }
  | { kind: "note"; key: string; call: Call }
  | { kind: "day"; key: string; day: string };

/** Reading a file leaves nothing to see: several in a row are one row. Pictures are worth their own. */
const folds = (call: Call): boolean =>
  call.tool === "view" &&
  call.state === "done" &&
  call.note === undefined &&
  !call.pictures.length &&
  !isPicture(call.arguments.path ?? "");

const REFUSED = "Not let through: ";

/** A program that may not go out tries again and again, or in several places: that is one row. */
const isRefusal = (call: Call): boolean => call.note?.startsWith(REFUSED) === true;

/** Where programs wanted to go, each place once. */
export const refusedPlaces = (calls: readonly Call[]): string[] => [
  ...new Set(calls.map((call) => (call.note ?? "").slice(REFUSED.length).split(/\.? /, 1)[0] ?? "")),
];

export function matches(call: Call, wanted: string): boolean {
  if (!wanted) return true;
  const text = `${call.tool} ${call.description} ${call.note ?? ""} ${task(call)} ${call.note === undefined ? sentenceOf(call) : ""}`;
  return text.toLowerCase().includes(wanted);
}

const noon = new Date();
/** Cheaper than a date in words, and the same for one day. */
function dayNumber(at: number): number {
  noon.setTime(at * 1000);
  return noon.getFullYear() * 400 + noon.getMonth() * 32 + noon.getDate();
}

export function rowsOf(
  calls: readonly Call[],
  wanted: string,
  open: ReadonlySet<string>,
  unfold: boolean,
): Row[] {
  const rows: Row[] = [];
  const listed = wanted ? calls.filter((call) => matches(call, wanted)) : calls;
  let day = dayNumber(Date.now() / 1000);
  let reads: Call[] = [];
  let refusals: Call[] = [];
  const flush = () => {
    const [refused] = refusals;
    if (refused) {
      const key = `refusals-${refused.id}`;
      const shown = refusals.length === 1 || open.has(key) || unfold;
      if (refusals.length > 1) rows.push({ kind: "refusals", key, calls: refusals, open: shown });
      if (shown) for (const call of refusals) rows.push({ kind: "note", key: call.id, call });
      refusals = [];
    }
    const first = reads[0];
    if (!first) return;
    const key = `reads-${first.id}`;
    const shown = open.has(key) || unfold;
    if (reads.length > 1) rows.push({ kind: "reads", key, calls: reads, open: shown });
    if (reads.length === 1 || shown)
      for (const call of reads) rows.push({ kind: "call", key: call.id, call, inner: reads.length > 1 });
    reads = [];
  };
  for (const call of listed) {
    const number = dayNumber(call.at);
    if (number !== day) {
      flush();
      day = number;
      rows.push({ kind: "day", key: `day-${call.id}`, day: dayOf(call.at) });
    }
    if (isRefusal(call)) {
      if (reads.length) flush();
      refusals.push(call);
      continue;
    }
    if (folds(call)) {
      if (refusals.length) flush();
      reads.push(call);
      continue;
    }
    flush();
    if (call.note === undefined) rows.push({ kind: "call", key: call.id, call, inner: false });
    else rows.push({ kind: "note", key: call.id, call });
  }
  flush();
  return rows;
}
