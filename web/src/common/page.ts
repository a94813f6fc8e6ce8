/** What the server tells a page about itself, and the addresses that follow from it. */

import type { PageData } from "./api.generated";

export type { PageData };

export function readPage(): PageData {
  return JSON.parse(document.body.dataset.page ?? "{}") as PageData;
}

/**
 * The address that a person may see: without the signature of a signed link, which the cookie stands for by now. A frame
 * keeps it: nobody sees its address, and in another site's page no cookie comes along when it is loaded again.
 */
export function seen(address: string, framed: boolean = window.top !== window): string {
  const url = new URL(address);
  if (framed || !url.searchParams.has("key")) return address;
  url.searchParams.delete("key");
  return url.href;
}

/** Whether no part of the path is one that a browser takes out of an address, together with the part before it. */
export function isPlain(path: string): boolean {
  const parts = path.replace(/\/$/, "").split("/");
  return path === "" || !parts.some((part) => part === "" || part === "." || part === "..");
}

/**
 * A name may hold bytes that are no UTF-8: each stands in a path as one of U+DC80 to U+DCFF, as the service has it.
 * Throws for a path that is not plain: there is no spelling of `..` that an address keeps.
 */
export function encodePath(path: string): string {
  if (!isPlain(path)) throw new Error("This is no path of a file of this chat.");
  return path.replace(/[\udc80-\udcff]|[^/\udc80-\udcff]+/gu, (part) =>
    /^[\udc80-\udcff]/u.test(part)
      ? `%${(part.charCodeAt(0) - 0xdc00).toString(16).toUpperCase()}`
      : encodeURIComponent(part),
  );
}

const ENCODED =
  /%[cd][\da-f]%[89ab][\da-f]|%e[\da-f](?:%[89ab][\da-f]){2}|%f[0-7](?:%[89ab][\da-f]){3}|%[\da-f]{2}/gi;

/** The path that was encoded so. */
export function decodePath(address: string): string {
  return address.replace(ENCODED, (character) => {
    try {
      return decodeURIComponent(character);
    } catch {
      return character.replace(/%(..)/g, (_, byte: string) =>
        String.fromCharCode(0xdc00 + Number.parseInt(byte, 16)),
      );
    }
  });
}

/** Every address that the pages use. Absolute from the start, because the workspace changes its own address. */
export class Addresses {
  readonly root: URL;
  readonly #chat: string;
  readonly #raw: string;
  /** A signed link's signature: where a cookie cannot go (a frame in another site's page) it must go along. */
  readonly #key: string | null;
  /** The person came by a link that only lets one look: what changes something is not offered. */
  readonly viewOnly: boolean;

  constructor(page: PageData, location: string = document.location.href) {
    this.root = new URL(page.root, location);
    this.#key = new URL(location).searchParams.get("key");
    this.root.search = "";
    this.root.hash = "";
    this.#chat = encodeURIComponent(page.chat);
    this.#raw = page.raw;
    this.viewOnly = page.view;
  }

  get chat(): string {
    return decodeURIComponent(this.#chat);
  }

  #at(path: string): string {
    const url = new URL(path, this.root);
    if (this.#key !== null) url.searchParams.set("key", this.#key);
    return url.href;
  }

  file(path: string): string {
    return this.#at(`files/${this.#chat}/${encodePath(path)}`);
  }
  listing(path: string): string {
    const folder = path && !path.endsWith("/") ? `${path}/` : path;
    return this.file(folder);
  }
  /** Somebody clicked on this: it wakes a computer that sleeps. */
  download(path: string): string {
    return this.#at(`files/${this.#chat}/${encodePath(path)}?download=1&wake=1`);
  }
  /** So does this. */
  archive(): string {
    return this.#at(`files/${this.#chat}/archive?wake=1`);
  }
  start(): string {
    return this.#at(`api/chats/${this.#chat}/start`);
  }
  /** Names and contents; `wake`: the person wants a computer that sleeps to be started for it. */
  search(text: string, wake: boolean): string {
    const url = new URL(this.#at(`api/chats/${this.#chat}/search`));
    url.searchParams.set("q", text);
    if (wake) url.searchParams.set("wake", "1");
    return url.href;
  }
  changes(since: number): string {
    const url = new URL(this.#at(`api/chats/${this.#chat}/changes`));
    url.searchParams.set("since", since.toFixed(3));
    return url.href;
  }
  /** Without an id, the list of earlier versions. */
  version(path: string, id: string, download = false): string {
    const url = new URL(this.#at(`api/chats/${this.#chat}/versions/${encodePath(path)}`));
    if (id) url.searchParams.set("id", id);
    if (download) url.searchParams.set("download", "1");
    return url.href;
  }
  tail(path: string): string {
    return this.#at(`api/chats/${this.#chat}/tail/${encodePath(path)}`);
  }
  pdf(path: string): string {
    return this.#at(`api/chats/${this.#chat}/pdf/${encodePath(path)}`);
  }
  edit(path: string): string {
    return this.#at(`api/files/${this.#chat}/${encodePath(path)}`);
  }
  rename(path: string, to: string): string {
    const url = new URL(this.edit(path));
    url.searchParams.set("to", to);
    return url.href;
  }
  remove(path: string, recursive: boolean): string {
    const url = new URL(this.edit(path));
    if (recursive) url.searchParams.set("recursive", "1");
    return url.href;
  }
  upload(name: string): string {
    return this.#at(`api/uploads/${this.#chat}/${encodePath(name)}`);
  }
  preview(path: string): string {
    return this.#at(`preview/${this.#chat}/${encodePath(path)}`);
  }
  /** Asks for a capability, by which a frame without cookies reads this page and its folder, or all of the chat. */
  grant(path: string, wants: { scripts: boolean; all: boolean }): string {
    const query = `?scripts=${wants.scripts ? 1 : 0}&all=${wants.all ? 1 : 0}`;
    return this.#at(`api/chats/${this.#chat}/raw/${encodePath(path)}${query}`);
  }
  pictures(path: string): string | null {
    return this.#raw ? new URL(this.#raw + encodePath(path), this.root).href : null;
  }
  /** The page of the replay. */
  replayPage(): string {
    return this.#at(`replay/${this.#chat}/`);
  }
  /** What was done, in few words, after this entry; with the pictures that were taken after this time. */
  timeline(after: number, since: number): string {
    return this.#at(`api/chats/${this.#chat}/timeline?after=${after}&since=${since}`);
  }
  frame(id: string): string {
    return this.#at(`api/chats/${this.#chat}/frames/${encodeURIComponent(id)}`);
  }
  /** The links of the chat that were made by hand, or one of them. */
  links(id = ""): string {
    return new URL(`api/links/${this.#chat}${id && `/${encodeURIComponent(id)}`}`, this.root).href;
  }
  logout(): string {
    return new URL("logout", this.root).href;
  }
  /** The journal as a file that replays it. */
  replay(): string {
    return this.#at(`api/chats/${this.#chat}/replay`);
  }

  /** Where what a call wrote is taken back, or made again. */
  undo(call: string, redo: boolean): string {
    const url = new URL(this.#at(`api/chats/${this.#chat}/calls/${encodeURIComponent(call)}/undo`));
    if (redo) url.searchParams.set("redo", "1");
    return url.href;
  }

  /** Both sides of what a call changed in a file, whole. */
  change(call: string): string {
    return this.#at(`api/chats/${this.#chat}/calls/${encodeURIComponent(call)}/change`);
  }

  events(): string {
    return this.#at(`api/chats/${this.#chat}/events`);
  }
  /** The calls before one. */
  earlier(before: string): string {
    const url = new URL(this.#at(`api/chats/${this.#chat}/calls`));
    url.searchParams.set("before", before);
    return url.href;
  }
  /** A picture that a call answered with. */
  picture(hash: string): string {
    return this.#at(`api/chats/${this.#chat}/pictures/${encodeURIComponent(hash)}`);
  }
  /** The ports that are open, as they come and go. */
  ports(): string {
    return this.#at(`api/chats/${this.#chat}/ports/events`);
  }
  openPorts(): string {
    return this.#at(`api/chats/${this.#chat}/ports`);
  }
  portShare(port: number): string {
    return this.#at(`api/chats/${this.#chat}/ports/${port}/share`);
  }
  terminal(tail = ""): string {
    return this.#at(`terminal/${this.#chat}/${tail}`);
  }
  browser(tail = ""): string {
    return this.#at(`browser/${this.#chat}/${tail}`);
  }
  /** This page, counted from the root of the service: what the sign-in page returns to. */
  here(location: string = document.location.href): string {
    const { pathname, search } = new URL(location);
    return `/${pathname.slice(this.root.pathname.length)}${search}`;
  }
  login(): string {
    return new URL(`login?next=${encodeURIComponent(this.here())}`, this.root).href;
  }
  admin(tail: string): string {
    return this.#at(tail);
  }
  socket(url: string): string {
    return url.replace(/^http/, "ws");
  }
}
