/** The messages of the live browser channel; docs/live-browser.md is their description. */

import type { FromService } from "./messages.generated";

export type {
  Button,
  FromService,
  FromViewer,
  PickerKind,
  Popup,
  Rect,
  SelectOption as Option,
  TabRecord as Tab,
  WatcherRecord as Watcher,
} from "./messages.generated";

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
