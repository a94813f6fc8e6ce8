/** Which files a call left for the person: to be shown with it. */
import { kindOfName } from "../common/kinds";
import { chatPath } from "../common/sandbox";
import { type Call, task } from "../workspace/calls";
import { baseName, isPicture } from "./words";

export interface Result {
  kind: "picture" | "table" | "page" | "file";
  /** Among the chat's files. */
  path: string;
}

export interface OutputFile {
  path: string;
  name: string;
  modified: string;
}

const MOST_OF_CALL = 6;
/** Times of files are whole seconds, and a clock of a sandbox may be a little off. */
const SLACK = 1.5;
/** Calls that can have written a file: of many that ran at the same time, the latest. */
const LOOKED_AT = 50;

const SHOWN: Record<string, Result["kind"]> = { image: "picture", table: "table", html: "page" };

export function resultOf(path: string): Result {
  return { kind: SHOWN[kindOfName(baseName(path)) ?? ""] ?? "file", path };
}

/** What the call itself names. */
export function namedResult(call: Call): Result | null {
  const given = call.arguments.path ?? "";
  const path = chatPath(given);
  if (path === null || call.state !== "done" || call.undone) return null;
  if (call.tool === "view") return isPicture(given) && !call.pictures.length ? resultOf(path) : null;
  if (call.tool !== "create_file" && call.tool !== "str_replace") return null;
  // A file of code is in the change that is shown; what is to be looked at is shown as that.
  const result = resultOf(path);
  return result.kind === "file" ? null : result;
}

const ran = (call: Call): boolean => call.tool === "bash_tool" || call.tool === "sub_agent";

/** The call that most likely wrote a file: one that ran then, if several did one that names it. */
function writerOf(calls: readonly Call[], file: OutputFile, now: number): Call | null {
  const at = Date.parse(file.modified) / 1000;
  if (!Number.isFinite(at)) return null;
  let low = 0;
  let high = calls.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((calls[middle] as Call).at <= at + SLACK) low = middle + 1;
    else high = middle;
  }
  const able = calls
    .slice(Math.max(0, low - LOOKED_AT), low)
    .filter((call) => at <= (call.seconds === null ? now : call.at + call.seconds) + SLACK);
  const wrote = able.findLast((call) => !ran(call) && call.note === undefined && endsWith(call, file));
  if (wrote) return null; // it is shown there
  const running = able.filter(ran);
  return running.findLast((call) => task(call).includes(file.name)) ?? running.at(-1) ?? null;
}

const endsWith = (call: Call, file: OutputFile): boolean => {
  const path = call.arguments.path ?? "";
  return call.tool !== "view" && chatPath(path) === file.path;
};

/** For each call, the files that it wrote among the outputs. */
export function writtenBy(
  calls: readonly Call[],
  files: readonly OutputFile[],
  now = Date.now() / 1000,
): Map<string, Result[]> {
  const found = new Map<string, Result[]>();
  for (const file of files) {
    const call = writerOf(calls, file, now);
    if (!call) continue;
    const results = found.get(call.id) ?? [];
    if (results.length < MOST_OF_CALL) found.set(call.id, [...results, resultOf(file.path)]);
  }
  return found;
}
