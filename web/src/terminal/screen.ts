/** xterm and its add-ons, joined to one connection. */

import { effect, signal } from "@preact/signals";
import { ClipboardAddon, type IClipboardProvider } from "@xterm/addon-clipboard";
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";
import type { TerminalStatus } from "../common/api.generated";
import { readClipboard, writeClipboard } from "../common/clipboard";
import { getJson, post } from "../common/http";
import { Link } from "../common/link";
import type { Addresses } from "../common/page";
import { dark } from "../common/theme";
import { offerLink, toast } from "../ui/toast";
import { DARK, LIGHT } from "./colours";
import { askBeforePaste, fontSize, readOnly, screenReader } from "./preferences";
import { binaryInput, hello, input, needsGuard, parse, resize, SUBPROTOCOL } from "./ttyd";

/** A first start may have to make the sandbox. */
const START_LIMIT_MS = 120_000;

/** Programs in the sandbox may set the clipboard (tmux does), and the person is told; they may never read it. */
const clipboard: IClipboardProvider = {
  readText: () => "",
  writeText: async (_selection, data) => {
    if (!document.hasFocus()) return;
    await writeClipboard(data).then(
      () => toast(`The terminal copied ${data.length.toLocaleString()} characters.`),
      () => toast("The terminal wanted to copy text, and this browser refused."),
    );
  },
};

export class Screen {
  readonly title = signal("");
  readonly search = new SearchAddon();
  /** Several lines that wait for the person's word before they go in. */
  readonly heldPaste = signal<string | null>(null);
  readonly link: Link;
  readonly #terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #undo: (() => void)[] = [];
  #opened = false;

  constructor(private readonly addresses: Addresses) {
    this.#terminal = new Terminal({
      allowProposedApi: true,
      cursorBlink: true,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: fontSize.value,
      scrollback: 5000,
      minimumContrastRatio: 4.5,
      macOptionIsMeta: true,
      linkHandler: { activate: (_event, uri) => offerLink(uri) },
    });
    this.#terminal.onTitleChange((title) => {
      this.title.value = title.slice(0, 120);
    });
    this.#terminal.loadAddon(this.#fit);
    this.#terminal.loadAddon(this.search);
    this.#terminal.loadAddon(new ClipboardAddon(undefined, clipboard));
    this.#terminal.loadAddon(new WebLinksAddon((_event, uri) => offerLink(uri)));
    this.link = new Link({
      prepare: (_signal, wake) =>
        post(addresses.terminal(wake ? "start-ttyd" : "start-ttyd?wake=0"), START_LIMIT_MS),
      condition: async () => (await getJson<TerminalStatus>(addresses.terminal("status"))).sandbox,
      open: () => new WebSocket(addresses.socket(addresses.terminal("ws")), [SUBPROTOCOL]),
      onOpen: (socket) => {
        // tmux redraws all of the screen next: leftovers of the last connection would stand beside it.
        this.#terminal.reset();
        this.fit();
        socket.send(hello(this.#terminal.cols, this.#terminal.rows));
        // One that comes back by itself must not take the keys from where the person types by now.
        if (!this.#opened || document.activeElement === document.body) this.#terminal.focus();
        this.#opened = true;
      },
      onMessage: (data) => this.#take(data),
    });
  }

  attach(element: HTMLElement): void {
    const terminal = this.#terminal;
    terminal.open(element);
    const named = this.addresses.viewOnly ? "Terminal, view only." : "Terminal input.";
    terminal.textarea?.setAttribute("aria-label", `${named} Shift+Escape leaves it.`);
    terminal.attachCustomKeyEventHandler((event) => this.#key(event));
    terminal.onData((text) => this.#send(input(text)));
    terminal.onBinary((text) => this.#send([binaryInput(text)]));
    terminal.onResize(({ cols, rows }) => this.link.send(resize(cols, rows)));
    const sizes = new ResizeObserver(() => this.fit());
    sizes.observe(element);
    const onPaste = (event: ClipboardEvent) => this.#pasted(event);
    element.addEventListener("paste", onPaste, true);
    this.#undo.push(
      () => sizes.disconnect(),
      () => element.removeEventListener("paste", onPaste, true),
      effect(() => {
        terminal.options.theme = dark.value ? DARK : LIGHT;
      }),
      effect(() => {
        terminal.options.fontSize = fontSize.value;
        this.fit();
      }),
      effect(() => {
        terminal.options.disableStdin = this.readOnly;
        terminal.options.cursorBlink = !this.readOnly;
      }),
      effect(() => {
        terminal.options.screenReaderMode = screenReader.value;
      }),
    );
    this.link.start();
  }

  /** Nothing is sent: the person wants it so, or the link allows no more. */
  get readOnly(): boolean {
    return this.addresses.viewOnly || readOnly.value;
  }

  dispose(): void {
    for (const undo of this.#undo.splice(0)) undo();
    this.link.stop();
    this.#terminal.dispose();
  }

  fit(): void {
    const host = this.#terminal.element?.parentElement;
    if (host && host.clientWidth > 20 && host.clientHeight > 20) this.#fit.fit();
  }

  focus(): void {
    this.#terminal.focus();
  }

  paste(text: string): void {
    if (!this.readOnly) this.#terminal.paste(text);
    this.#terminal.focus();
  }

  /** A key that the person has no key for. */
  type(text: string): void {
    this.#send(input(text));
    this.#terminal.focus();
  }

  async pasteFromClipboard(): Promise<void> {
    await readClipboard().then(
      (text) => this.#guard(text),
      () => toast("This browser does not let the page read the clipboard: use Ctrl+Shift+V or Cmd+V."),
    );
  }

  async copySelection(): Promise<void> {
    const text = this.#terminal.getSelection();
    if (!text) {
      toast("Nothing is selected. Hold Shift while you drag if a program has the mouse.");
      return;
    }
    await writeClipboard(text).then(
      () => toast(`Copied ${text.length.toLocaleString()} characters.`),
      () => toast("This browser refused to copy."),
    );
  }

  #send(messages: Uint8Array<ArrayBuffer>[]): void {
    if (this.readOnly) return;
    for (const message of messages) this.link.send(message);
  }

  #take(data: string | ArrayBuffer): void {
    const message = parse(data);
    if (message.kind === "output") this.#terminal.write(message.data);
    // A "title" message is ttyd's own command line, of no use to a person; titles come from programs, as escapes.
  }

  #guard(text: string): void {
    if (!text) return;
    if (askBeforePaste.value && !this.readOnly && needsGuard(text)) this.heldPaste.value = text;
    else this.paste(text);
  }

  #pasted(event: ClipboardEvent): void {
    event.preventDefault();
    event.stopPropagation();
    this.#guard(event.clipboardData?.getData("text/plain") ?? "");
  }

  /** True: the terminal gets the key; false: the page or the browser does. */
  #key(event: KeyboardEvent): boolean {
    if (event.type !== "keydown") return true;
    if (event.key === "Escape" && event.shiftKey) {
      // All other keys are the terminal's, Tab too: without this, who has no mouse could never leave it.
      event.preventDefault();
      this.#terminal.element?.closest("section")?.querySelector<HTMLElement>("header button")?.focus();
      return false;
    }
    const chord = event.ctrlKey && event.shiftKey && !event.altKey;
    if (chord && event.code === "KeyC") {
      event.preventDefault();
      void this.copySelection();
      return false;
    }
    if (chord && (event.code === "KeyV" || event.code === "KeyF")) return false;
    return !(event.metaKey && ["KeyC", "KeyV", "KeyF", "KeyK"].includes(event.code));
  }
}
