/** The viewer frame: an opaque origin without network, in which hostile files are parsed and drawn. */
import "../ui/base.css";
import "./viewer.css";
import type { Kind } from "../common/kinds";
import type { Context, Viewer } from "./context";
import { element, Unshowable } from "./context";
import type { FromViewerFrame, Show, ToViewer } from "./messages";

const VIEWERS: Partial<Record<Kind, () => Promise<Viewer>>> = {
  text: async () => (await import("./text")).showText,
  markdown: async () => (await import("./markdown")).showMarkdown,
  svg: async () => (await import("./picture")).showSvg,
  diagram: async () => (await import("./markdown")).showDiagram,
  table: async () => (await import("./table")).showTable,
  sheet: async () => (await import("./sheet")).showSheet,
  pdf: async () => (await import("./pdf")).showPdf,
  docx: async () => (await import("./docx")).showDocx,
  slides: async () => (await import("./slides")).showSlides,
  notebook: async () => (await import("./notebook")).showNotebook,
  archive: async () => (await import("./archive")).showArchive,
  hex: async () => (await import("./hex")).showHex,
};

/** What a parser says is for its programmers. */
function reason(error: unknown): string {
  if (error instanceof Unshowable) return error.message;
  return error instanceof Error && /password/i.test(error.message)
    ? "It is protected by a password."
    : "It may be damaged, or not be what its name says.";
}

const XLINK = "http://www.w3.org/1999/xlink";

/** The link that an event is on: of HTML, SVG or MathML, and under either name of its address. */
function linkAt(event: Event): Element | null {
  return event.target instanceof Element ? event.target.closest("a, area, [*|href]") : null;
}

class Frame {
  readonly #port: MessagePort;
  readonly #wanted = new Map<number, (bytes: ArrayBuffer | null) => void>();
  readonly #host: HTMLElement;
  #lastAsset = 0;
  #text: (() => string) | null = null;
  #dark = false;

  constructor(port: MessagePort) {
    this.#port = port;
    this.#host = document.getElementById("app") as HTMLElement;
    port.onmessage = (event: MessageEvent<ToViewer>) => this.#take(event.data);
    document.addEventListener("click", (event) => this.#click(event), true);
    // What is dropped on the frame would be opened in it.
    document.addEventListener("dragstart", (event) => linkAt(event) && event.preventDefault(), true);
  }

  #say(message: FromViewerFrame): void {
    this.#port.postMessage(message);
  }

  #take(message: ToViewer): void {
    if (message.type === "theme") {
      this.#dark = message.dark;
      document.documentElement.dataset.theme = message.dark ? "dark" : "light";
    } else if (message.type === "read") {
      this.#say({ type: "text", id: message.id, text: this.#text?.() ?? "" });
    } else if (message.type === "ping") {
      this.#say({ type: "pong" });
    } else if (message.type === "asset") {
      this.#wanted.get(message.id)?.(message.bytes);
      this.#wanted.delete(message.id);
    } else {
      void this.#show(message);
    }
  }

  async #show(message: Show): Promise<void> {
    const host = element("main", { class: `viewer ${message.kind}` });
    this.#host.replaceChildren(host);
    const data = new Uint8Array(message.bytes);
    // Asked now: a viewer may hand the bytes on to its worker.
    const inPart = data.length < message.size && message.kind !== "hex";
    try {
      const viewer = await VIEWERS[message.kind]?.();
      if (!viewer) throw new Unshowable("There is no viewer for this kind of file.");
      await viewer(
        host,
        { name: message.name, data, size: message.size, base: message.base, line: message.line ?? null },
        this.#context(message.edit ?? false),
      );
      if (inPart) {
        host.prepend(
          element("p", {
            class: "part",
            text: "Only the first part of this file is shown. Download it for the rest.",
          }),
        );
      }
      this.#say({ type: "shown" });
    } catch (error) {
      this.#say({ type: "failed", message: reason(error) });
    }
  }

  #context(edit: boolean): Context {
    this.#text = null;
    return {
      editing: edit
        ? {
            reads: (text) => {
              this.#text = text;
            },
            changed: () => this.#say({ type: "changed" }),
            save: () => this.#say({ type: "save" }),
          }
        : null,
      link: (href) => this.#say({ type: "link", href }),
      dark: () => this.#dark,
      visible: () => this.#say({ type: "shown" }),
      asset: (name) =>
        new Promise((resolve, reject) => {
          this.#lastAsset += 1;
          const id = this.#lastAsset;
          this.#wanted.set(id, (bytes) =>
            bytes ? resolve(new Uint8Array(bytes)) : reject(new Error(`no ${name}`)),
          );
          this.#say({ type: "asset", id, name });
        }),
    };
  }

  /** No link leads out of the frame: ones within the file scroll, the others are the page's to judge. */
  #click(event: MouseEvent): void {
    const link = linkAt(event);
    if (!link) return;
    event.preventDefault();
    const href = link.getAttribute("href") ?? link.getAttributeNS(XLINK, "href");
    if (href === null) return;
    if (!href.startsWith("#")) {
      this.#say({ type: "link", href });
      return;
    }
    const name = decodeURIComponent(href.slice(1));
    const target = document.getElementById(name) ?? document.getElementsByName(name)[0];
    target?.scrollIntoView({ behavior: "smooth" });
  }
}

addEventListener("message", (event) => {
  if (event.source === parent && event.data === "cubicle-viewer" && event.ports[0]) {
    document.getElementById("app")?.replaceChildren();
    new Frame(event.ports[0]);
    event.ports[0].postMessage({ type: "ready" } satisfies FromViewerFrame);
  }
});
parent.postMessage("cubicle-viewer-loaded", "*");
