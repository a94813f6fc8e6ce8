/** What the page and the viewer frame say to each other, over one channel that the page opens. */
import type { Kind } from "../common/kinds";

export interface Show {
  type: "show";
  kind: Kind;
  name: string;
  bytes: ArrayBuffer;
  /** Whole size of the file; `bytes` may be its first part only. */
  size: number;
  /** Address below which relative pictures of the file are found; null when there is none. */
  base: string | null;
  /** The text can be changed; the page asks for it when it is to be saved. */
  edit?: boolean;
  /** The line of a text to begin at, from 1 on. */
  line?: number;
}

export type ToViewer =
  | Show
  | { type: "theme"; dark: boolean }
  | { type: "ping" }
  | { type: "read"; id: number }
  | { type: "asset"; id: number; bytes: ArrayBuffer | null };

export type FromViewerFrame =
  | { type: "ready" }
  | { type: "pong" }
  | { type: "shown" }
  | { type: "failed"; message: string }
  | { type: "link"; href: string }
  | { type: "changed" }
  | { type: "save" }
  | { type: "text"; id: number; text: string }
  | { type: "asset"; id: number; name: string };

/** The only built files that the frame may ask for: it has no network of its own. */
export const ASSET_NAME = /^pdf\/(cmaps|standard_fonts|wasm)\/\w[\w.-]*$/;
