/** The entries of a journal, put together to what a person follows: calls, and what else happened. */
import { type Call, callOf } from "../workspace/calls";
import type { ChangedFile, Ending } from "../workspace/events.generated";

interface Entry {
  n: number;
  at: number;
  kind: string;
  fields: Record<string, unknown>;
}

export interface Picture {
  type: string;
  data: string;
}

export interface Item {
  /** The entry with which it appears, and the one with which it is over; places in the list of entries. */
  begin: number;
  end: number;
  at: number;
  /** Null: no tool call. */
  call: Call | null;
  kind: string;
  text: string;
  user: string;
  /** What it printed: from which entry on each piece is shown, and where in the whole output it begins. */
  outputs: { entry: number; from: number; text: string }[];
  head: string;
  tail: string;
  cut: number;
  pictures: Picture[];
  undone: { entry: number; undone: boolean }[];
}

export interface Replay {
  chat: string;
  made: number;
  entries: { at: number; item: number }[];
  items: Item[];
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const DATA_URI = /data:(image\/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})/;

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number => (typeof value === "number" && Number.isFinite(value) ? value : 0);
const record = (value: unknown): Record<string, unknown> =>
  value && typeof value === "object" && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

function parsed(line: string): Record<string, unknown> {
  try {
    return record(JSON.parse(line));
  } catch {
    return {};
  }
}

function argumentsOf(value: unknown): Record<string, string> {
  return Object.fromEntries(Object.entries(record(value)).map(([name, one]) => [name, text(one)]));
}

/** What is said of an entry that is no call's. */
export function noteOf(kind: string, fields: Record<string, unknown>): string {
  const reason = text(fields.reason);
  switch (kind) {
    case "upload":
      return `Uploaded ${text(fields.path)} (${number(fields.size).toLocaleString("en")} bytes)`;
    case "edit":
      return `A person ${text(fields.what)} ${text(fields.path)}${fields.to ? ` to ${text(fields.to)}` : ""}`;
    case "takeover":
      return `${text(fields.user) || "Somebody"} opened the ${text(fields.what)}`;
    case "handback":
      return `${text(fields.user) || "Somebody"} gave back the ${text(fields.what)}`;
    case "egress":
      return `Not let through: ${text(fields.host)}:${number(fields.port)}. ${reason}`.trim();
    case "lifecycle":
      return `Sandbox ${text(fields.what)}. ${reason}`.trim();
    case "agent":
      return `Coding agent: ${text(fields.event)} ${text(fields.text)}`.trim();
    case "gap":
      return `The journal is incomplete here. ${text(fields.why)}`.trim();
    default:
      return kind;
  }
}

class Builder {
  readonly replay: Replay = { chat: "", made: 0, entries: [], items: [] };
  readonly #calls = new Map<string, number>();
  readonly #pictures = new Map<string, Picture>();

  add(line: string): void {
    const fields = parsed(line);
    if (typeof fields.chat === "string") {
      this.replay.chat = fields.chat;
      this.replay.made = number(fields.made);
    } else if (typeof fields.blob === "string") {
      const type = text(fields.media_type);
      if (PICTURES.has(type)) this.#pictures.set(fields.blob, { type, data: text(fields.data) });
    } else if (typeof fields.kind === "string") {
      this.#entry({
        n: number(fields.n),
        at: number(fields.at),
        kind: fields.kind,
        fields: record(fields.fields),
      });
    }
  }

  #entry(entry: Entry): void {
    const place = this.replay.entries.length;
    const known = this.#calls.get(text(entry.fields.call));
    const item = known === undefined ? undefined : this.replay.items[known];
    if (item && known !== undefined && ["output", "end", "undo"].includes(entry.kind)) {
      this.replay.entries.push({ at: entry.at, item: known });
      if (entry.kind === "output")
        item.outputs.push({ entry: place, from: number(entry.fields.from), text: text(entry.fields.text) });
      else if (entry.kind === "undo")
        item.undone.push({ entry: place, undone: entry.fields.undone !== false });
      else this.#end(item, place, entry.fields);
      return;
    }
    if (["output", "end", "undo"].includes(entry.kind)) return; // its call is no longer in the journal
    this.replay.entries.push({ at: entry.at, item: this.replay.items.length });
    this.replay.items.push(this.#begun(entry, place));
  }

  #begun(entry: Entry, place: number): Item {
    const { fields } = entry;
    const isCall = entry.kind === "call" && text(fields.call) !== "";
    if (isCall) this.#calls.set(text(fields.call), this.replay.items.length);
    const call = isCall
      ? callOf({
          type: "call",
          id: text(fields.call),
          tool: text(fields.tool),
          description: text(fields.description) || null,
          arguments: argumentsOf(fields.arguments),
          at: entry.at,
        })
      : null;
    return {
      begin: place,
      end: isCall ? Number.MAX_SAFE_INTEGER : place,
      at: entry.at,
      call,
      kind: entry.kind,
      text: isCall ? "" : noteOf(entry.kind, fields),
      user: text(fields.user),
      outputs: [],
      head: "",
      tail: "",
      cut: 0,
      pictures: [],
      undone: [],
    };
  }

  #end(item: Item, place: number, fields: Record<string, unknown>): void {
    if (!item.call) return;
    const code = fields.exit_code;
    item.end = place;
    item.head = text(fields.head);
    item.tail = text(fields.tail);
    item.cut = number(fields.cut);
    item.call = {
      ...item.call,
      state: fields.error === false ? "done" : "failed",
      ending: text(fields.ending) as Ending,
      signal: text(fields.signal),
      seconds: number(fields.seconds),
      exitCode: typeof code === "number" ? code : null,
      result: text(fields.result),
      notes: list(fields.notes).map(text),
      files: list(fields.files).map(record) as unknown as ChangedFile[],
    };
    for (const block of list(fields.answer).map(record)) {
      const [, type = "", data = ""] = DATA_URI.exec(text(block.text)) ?? [];
      const picture = data ? { type, data } : this.#pictures.get(text(block.blob));
      if (picture) item.pictures.push(picture);
    }
    if (item.pictures.length)
      item.call.result = item.call.result.replace(/(?:data:image\/|^)[\w+/;,:=-]{64,}/g, "[picture]");
  }
}

export function readReplay(lines: string): Replay {
  const builder = new Builder();
  for (const line of lines.split("\n")) if (line.trim()) builder.add(line);
  return builder.replay;
}

/** What a call had printed at a place of the replay. */
export function outputAt(item: Item, place: number): string {
  if (place >= item.end)
    return item.cut > 0
      ? `${item.head}\n[${item.cut.toLocaleString("en")} characters left out]\n${item.tail}`
      : item.head + item.tail;
  let [shown, end] = ["", 0];
  for (const piece of item.outputs) {
    if (piece.entry > place) break;
    if (piece.from > end)
      shown += `${shown && "\n"}[${(piece.from - end).toLocaleString("en")} characters left out]\n`;
    shown += piece.text;
    end = piece.from + [...piece.text].length;
  }
  return shown;
}

export function undoneAt(item: Item, place: number): boolean {
  return item.undone.filter((one) => one.entry <= place).at(-1)?.undone ?? false;
}

const LONGEST_PAUSE_MS = 1_500;

/** How long the replay waits before the entry that follows this place. Clocks of hosts go back at times. */
export function pauseAfter(replay: Replay, place: number, speed: number): number {
  const [now, next] = [replay.entries[place], replay.entries[place + 1]];
  if (!now || !next) return 0;
  return Math.min(LONGEST_PAUSE_MS, Math.max(20, ((next.at - now.at) * 1000) / speed));
}
