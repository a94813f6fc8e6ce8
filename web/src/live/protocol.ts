/** The messages of the live browser channel; docs/live-browser.md is their description. */

export interface Tab {
  id: string;
  title: string;
  url: string;
}

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Option {
  index: number;
  label: string;
  group: string;
  disabled: boolean;
  selected: boolean;
}

export type PickerKind = "date" | "time" | "datetime-local" | "month" | "week" | "color";

export type Popup =
  | {
      type: "dialog";
      id: string;
      kind: "alert" | "confirm" | "prompt" | "beforeunload";
      message: string;
      value: string;
    }
  | { type: "select"; id: string; multiple: boolean; options: Option[]; rect: Rect }
  | {
      type: "picker";
      id: string;
      kind: PickerKind;
      value: string;
      min: string;
      max: string;
      step: string;
      rect: Rect;
    }
  | { type: "chooser"; id: string; multiple: boolean; accept: string };

export type FromService =
  | { type: "hello"; version: number; viewer: string; viewport: { w: number; h: number } }
  | { type: "heartbeat" }
  | { type: "state"; browser: "starting" | "running" | "crashed" | "closed"; reason: string }
  | {
      type: "tabs";
      tabs: Tab[];
      active: string;
      back: boolean;
      forward: boolean;
      loading: boolean;
      /** Why the page that is shown was not let through, in words; empty when it was. */
      refusal: string;
    }
  | { type: "control"; holder: { viewer: string; name: string } | null; you?: boolean; seconds?: number }
  | { type: "cursor"; cursor: string }
  | Popup
  | { type: "gone"; id: string }
  | { type: "copied"; text: string }
  | { type: "download"; name: string; state: "started" | "finished" | "failed" }
  | { type: "refused"; message: string; reason: string };

export type Button = "none" | "left" | "middle" | "right" | "back" | "forward";

export type FromViewer =
  | { type: "ack"; seq: number }
  | { type: "view"; width: number; visible: boolean }
  | { type: "control"; action: "take" | "return" | "keep"; name?: string }
  | {
      type: "mouse";
      event: "move" | "down" | "up";
      x: number;
      y: number;
      button: Button;
      buttons: number;
      clicks: number;
      modifiers: number;
    }
  | { type: "wheel"; x: number; y: number; dx: number; dy: number; modifiers: number }
  | {
      type: "key";
      event: "down" | "up";
      key: string;
      code: string;
      location: number;
      modifiers: number;
      repeat: boolean;
    }
  | { type: "text"; text: string }
  | { type: "composition"; text: string; start: number; end: number }
  | { type: "paste"; text: string }
  | { type: "copy"; cut: boolean }
  | { type: "nav"; action: "go" | "back" | "forward" | "reload" | "stop"; url?: string }
  | { type: "tab"; action: "open" | "close" | "activate"; id?: string; url?: string }
  | { type: "dialog"; id: string; accept: boolean; text: string }
  | { type: "select"; id: string; chosen: number[] | null }
  | { type: "picker"; id: string; value: string | null }
  | { type: "files"; id: string; names: string[] | null };

export interface Frame {
  seq: number;
  /** Viewport of the page, CSS pixels: the space of coordinates. The picture may be smaller. */
  w: number;
  h: number;
  ts: number;
  tab: string;
  jpeg: Uint8Array<ArrayBuffer>;
}

const LONGEST_HEADER = 4096;

/** Null for bytes that are no frame: the page shows nothing rather than guess. */
export function parseFrame(data: ArrayBuffer): Frame | null {
  if (data.byteLength < 4) return null;
  const length = new DataView(data).getUint32(0);
  if (length > LONGEST_HEADER || 4 + length >= data.byteLength) return null;
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(data, 4, length)));
  } catch {
    return null;
  }
  if (!header || typeof header !== "object") return null;
  const { seq, w, h, ts, tab } = header as Record<string, unknown>;
  if (typeof seq !== "number" || typeof w !== "number" || typeof h !== "number" || w <= 0 || h <= 0)
    return null;
  return {
    seq,
    w,
    h,
    ts: typeof ts === "number" ? ts : 0,
    tab: typeof tab === "string" ? tab : "",
    jpeg: new Uint8Array(data, 4 + length),
  };
}

export function parseMessage(text: string): FromService | null {
  try {
    const message: unknown = JSON.parse(text);
    const known =
      message && typeof message === "object" && typeof (message as { type?: unknown }).type === "string";
    return known ? (message as FromService) : null;
  } catch {
    return null;
  }
}
