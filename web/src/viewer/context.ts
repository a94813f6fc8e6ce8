/** What the page is told of a text that is being changed. */
export interface Editing {
  /** How the page gets the text. */
  reads: (text: () => string) => void;
  changed: () => void;
  save: () => void;
}

/** What a viewer may do besides drawing. */
export interface Context {
  /** A link in the file: the page decides what becomes of it. */
  link: (href: string) => void;
  asset: (name: string) => Promise<Uint8Array>;
  dark: () => boolean;
  /** There is something to see already; the rest follows. */
  visible: () => void;
  /** Null unless the text may be changed. */
  editing: Editing | null;
}

/** Why a file cannot be shown, in words for the person who opened it. */
export class Unshowable extends Error {}

export type Viewer = (
  host: HTMLElement,
  file: {
    name: string;
    data: Uint8Array<ArrayBuffer>;
    size: number;
    base: string | null;
    line?: number | null;
  },
  context: Context,
) => Promise<void> | void;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: { class?: string; text?: string } = {},
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (properties.class) made.className = properties.class;
  if (properties.text !== undefined) made.textContent = properties.text;
  made.append(...children);
  return made;
}
