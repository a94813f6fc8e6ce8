/** What a call did, in the words of the person who watches. */
import { seconds } from "../common/format";
import { kindOfName } from "../common/kinds";
import type { IconName } from "../ui/icon";
import { type Call, codeOf, gist, stateOf } from "../workspace/calls";

export interface Title {
  icon: IconName;
  verb: string;
  /** What it was done to. */
  object: string;
  /** More of it, less important. */
  detail: string;
}

export function baseName(path: string): string {
  const parts = path.replace(/\/+$/, "").split("/");
  return parts.at(-1) || path;
}

export const isPicture = (path: string): boolean =>
  ["image", "svg"].includes(kindOfName(baseName(path)) ?? "");

/** Running, done, tried in vain. */
type Verbs = readonly [string, string, string];

const verbOf = (call: Call, [now, done, vain]: Verbs): string =>
  call.state === "running" ? now : call.state === "done" ? done : vain;

const MADE: Verbs = ["Creating", "Created", "Tried to create"];
const WRITTEN: Verbs = ["Writing", "Wrote", "Tried to write"];
const EDITED: Verbs = ["Editing", "Edited", "Tried to edit"];
const SEEN: Verbs = ["Looking at", "Looked at", "Tried to look at"];
const READ: Verbs = ["Reading", "Read", "Tried to read"];
const LISTED: Verbs = ["Listing", "Listed", "Tried to list"];
const RUN: Verbs = ["Running", "Ran", "Ran"];
const ASKED: Verbs = ["Agent works on", "Agent did", "Agent tried"];

/** A folder comes as a tree, a text with line numbers. */
const isFolder = (call: Call, path: string): boolean =>
  path.endsWith("/") || (call.state === "done" && call.result.startsWith(`${path}/\n`));

function range(call: Call): string {
  const found = /^\[\s*(\d+)\s*,\s*(-?\d+)\s*\]$/.exec(call.arguments.view_range ?? "");
  if (!found) return "";
  return found[2] === "-1" ? `from line ${found[1]}` : `lines ${found[1]} to ${found[2]}`;
}

function viewed(call: Call, path: string): Title {
  const object = baseName(path);
  if (isPicture(path) || call.pictures.length)
    return { icon: "eye", verb: verbOf(call, SEEN), object, detail: "" };
  if (isFolder(call, path)) return { icon: "files", verb: verbOf(call, LISTED), object: path, detail: "" };
  return { icon: "file", verb: verbOf(call, READ), object, detail: range(call) };
}

export function titleOf(call: Call): Title {
  const path = call.arguments.path ?? "";
  switch (call.tool) {
    case "bash_tool":
      return {
        icon: "terminal",
        verb: verbOf(call, RUN),
        object: call.description || gist(call),
        detail: call.description ? gist(call) : "",
      };
    case "create_file": {
      const known = call.files[0];
      const verbs = known && known.before === null ? MADE : WRITTEN;
      return { icon: "plus", verb: verbOf(call, verbs), object: baseName(path), detail: "" };
    }
    case "str_replace":
      return { icon: "edit", verb: verbOf(call, EDITED), object: baseName(path), detail: "" };
    case "view":
      return viewed(call, path);
    case "sub_agent":
      return {
        icon: "agents",
        verb: verbOf(call, ASKED),
        object: call.description || gist(call),
        detail: "",
      };
    default:
      return {
        icon: "activity",
        verb: `Called ${call.tool}`,
        object: call.description || gist(call),
        detail: "",
      };
  }
}

/** The title as one sentence, for labels and for those who hear it. */
export function sentenceOf(call: Call): string {
  const { verb, object, detail } = titleOf(call);
  return [verb, object, call.tool === "bash_tool" ? "" : detail].filter(Boolean).join(" ");
}

/** How it stands: with the exit code or the signal, and after how long it was ended. */
export function standing(call: Call): string {
  const state = stateOf(call);
  if (call.ending === "timed_out") {
    const after = call.notes.map((note) => /^\[timed out after ([\d.]+) s\]/.exec(note)?.[1]).find(Boolean);
    return `${state} after ${after ? `${after} s` : seconds(call.seconds ?? 0)}`;
  }
  return [state, codeOf(call)].filter(Boolean).join(" · ");
}

const portOpened = (_: string, port: string, program: string): string =>
  `Opened port ${port}${program ? ` · ${program}` : ""}`;

/** Sentences that matter beside the state: what the network did not let through, which ports were opened. */
export function beside(call: Call): string[] {
  return call.notes
    .filter((note) => /^(Note: |listening: )/.test(note))
    .map((note) => note.replace(/^Note: /, "").replace(/^listening: (\d+) ?(.*?) → .*$/s, portOpened));
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "full" });

export const timeOfDay = (at: number): string => clock.format(at * 1000);
export const dayOf = (at: number): string => date.format(at * 1000);

export function tokens(count: number): string {
  if (count < 1000) return `${count}`;
  return count < 1_000_000
    ? `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)}k`
    : `${(count / 1e6).toFixed(1)}M`;
}

export const dollars = (amount: number): string => `$${amount.toFixed(amount < 1 ? 4 : 2)}`;
