/**
 * A card of the workspace in a chat client (MCP Apps): one page for every chat, which holds no key. It speaks JSON-RPC
 * with its host by messages, reads through it what there is to show, and shows that in a frame of the service.
 */

import { shownName } from "../common/format";
import { addressOf, type Port, type State, shownPath, type View } from "./address";
import "./card.css";

type Json = Record<string, unknown>;

const PROTOCOL = "2026-01-26";
const CHAT = "cubicle/chat";
const ANSWER_MS = 15_000;
/** A new key is asked for this long before the old one ends, in seconds. */
const EARLY = 60;
const SHORTEST_RENEWAL_MS = 20_000;
const FRAME_HEIGHT = 420;
const CONDITIONS: Record<string, string> = { running: "On", stopped: "Asleep", none: "Not made yet" };
const nameOf = (path: string) => path.slice(path.lastIndexOf("/") + 1);
const record = (value: unknown): Json =>
  value && typeof value === "object" && !Array.isArray(value) ? (value as Json) : {};
const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** The host, on the other side of postMessage. */
class Host {
  #next = 1;
  readonly #waiting = new Map<number, { resolve: (value: Json) => void; reject: (error: Error) => void }>();
  readonly on = new Map<string, (params: Json) => void>();

  constructor() {
    addEventListener("message", (event) => {
      if (event.source === window.parent) this.#take(record(event.data));
    });
  }

  #take(message: Json): void {
    if (message.jsonrpc !== "2.0") return;
    if (typeof message.method === "string") {
      this.on.get(message.method)?.(record(message.params));
      // What the host asks and waits for: whether the card lives, and whether it may be taken away.
      if (message.id !== undefined) this.#post({ id: message.id, result: {} });
      return;
    }
    const waiting = typeof message.id === "number" ? this.#waiting.get(message.id) : undefined;
    if (!waiting) return;
    this.#waiting.delete(message.id as number);
    if (message.error) waiting.reject(new Error(text(record(message.error).message) || "refused"));
    else waiting.resolve(record(message.result));
  }

  #post(message: Json): void {
    // The origin of a host is not known to a card, and nothing that is said here is secret to it.
    window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  tell(method: string, params: Json = {}): void {
    this.#post({ method, params });
  }

  ask(method: string, params: Json): Promise<Json> {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const limit = setTimeout(() => {
        this.#waiting.delete(id);
        reject(new Error("The chat client did not answer."));
      }, ANSWER_MS);
      const settled = () => clearTimeout(limit);
      this.#waiting.set(id, {
        resolve: (value) => {
          settled();
          resolve(value);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
      });
      this.#post({ id, method, params });
    });
  }
}

class Card {
  readonly #host = new Host();
  readonly #body = document.body;
  readonly #line = document.createElement("header");
  readonly #stage = document.createElement("main");
  #view: View;
  #open: View | "" = "";
  #path = "";
  #chat = "";
  #state: State | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #trouble = "";
  #shownUrl = "";
  #begun = false;

  constructor(view: View) {
    this.#view = view;
    this.#body.append(this.#line, this.#stage);
    this.#host.on.set("ui/notifications/tool-input", (params) => this.#input(record(params.arguments)));
    this.#host.on.set("ui/notifications/tool-result", (params) => this.#result(params));
    this.#host.on.set("ui/notifications/host-context-changed", (params) => this.#context(params));
    this.#host.on.set("ui/resource-teardown", () => this.#show(""));
    new ResizeObserver(() => this.#sized()).observe(document.documentElement);
  }

  async start(): Promise<void> {
    this.#draw();
    const said = await this.#host.ask("ui/initialize", {
      protocolVersion: PROTOCOL,
      appInfo: { name: "cubicle", version: "1" },
      appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
    });
    this.#context(record(said.hostContext));
    this.#host.tell("ui/notifications/initialized");
    this.#begun = true;
    this.#sized();
  }

  #context(context: Json): void {
    if (context.theme === "dark" || context.theme === "light")
      document.documentElement.dataset.theme = context.theme;
    if (this.#state) this.#draw();
  }

  #input(asked: Json): void {
    this.#path = shownPath(text(asked.path) || text(asked.file_path));
    this.#draw();
  }

  #result(result: Json): void {
    this.#chat = text(record(result._meta)[CHAT]);
    void this.#renew();
  }

  /** Reads what there is to show, with a key that works for some minutes, and again before that ends. */
  async #renew(): Promise<void> {
    clearTimeout(this.#timer);
    if (!this.#chat) return;
    try {
      const read = await this.#host.ask("resources/read", {
        uri: `cubicle://card/${encodeURIComponent(this.#chat)}`,
      });
      const content = Array.isArray(read.contents) ? record(read.contents[0]) : {};
      const first = this.#state === null;
      this.#state = JSON.parse(text(content.text)) as State;
      this.#trouble = "";
      if (first) this.#open = this.#first(this.#state);
    } catch (error) {
      this.#trouble = error instanceof Error ? error.message : "It cannot be shown here.";
    }
    this.#draw();
    const left = ((this.#state?.expires ?? 0) - EARLY) * 1000 - Date.now();
    if (this.#open) this.#timer = setTimeout(() => void this.#renew(), Math.max(SHORTEST_RENEWAL_MS, left));
  }

  /** What is open at first: what the call was about. A chat has many calls, so most cards are one line. */
  #first(state: State): View | "" {
    if (this.#view === "file") return this.#path ? "file" : "";
    if (this.#view === "computer") return state.browser ? "browser" : "";
    return this.#view;
  }

  #show(view: View | ""): void {
    this.#open = view;
    if (view) void this.#renew();
    else {
      clearTimeout(this.#timer);
      this.#draw();
    }
  }

  #draw(): void {
    const state = this.#state;
    const title = document.createElement("strong");
    title.textContent = this.#view === "file" && this.#path ? shownName(nameOf(this.#path)) : "Computer";
    const status = document.createElement("span");
    status.className = `muted grow ${!this.#trouble && state?.sandbox === "running" ? "on" : ""}`;
    status.setAttribute("role", "status");
    status.textContent = this.#trouble || (state ? (CONDITIONS[state.sandbox] ?? state.sandbox) : "…");
    this.#line.replaceChildren(title, status);
    if (state) this.#buttons(state);
    this.#stageOf(state);
    this.#sized();
  }

  #buttons(state: State): void {
    const parts = document.createElement("div");
    parts.className = "parts";
    parts.setAttribute("role", "group");
    parts.setAttribute("aria-label", "What is shown");
    this.#line.append(parts);
    const views: [View, string][] = [
      ["browser", "Browser"],
      ["terminal", "Terminal"],
      ...(this.#path ? ([["file", "File"]] as [View, string][]) : []),
      ...(state.ports.length ? ([["port", `Ports (${state.ports.length})`]] as [View, string][]) : []),
    ];
    for (const [view, words] of views) {
      const button = document.createElement("button");
      button.textContent = words;
      button.setAttribute("aria-pressed", String(this.#open === view));
      button.onclick = () => this.#show(this.#open === view ? "" : view);
      parts.append(button);
    }
    const open = document.createElement("button");
    open.textContent = "Open ↗";
    open.title = "Open the workspace in a tab";
    open.onclick = () => void this.#leave(this.#workspace(state));
    this.#line.append(open);
  }

  #workspace(state: State): string {
    const key = state.key ? `?key=${encodeURIComponent(state.key)}` : "";
    return `${state.base}preview/${encodeURIComponent(state.chat)}/${key}`;
  }

  async #leave(url: string): Promise<void> {
    try {
      await this.#host.ask("ui/open-link", { url });
    } catch {
      this.#trouble = "The chat client did not open the link.";
      this.#draw();
    }
  }

  #stageOf(state: State | null): void {
    if (!state || !this.#open) {
      this.#stage.replaceChildren();
      this.#shownUrl = "";
    } else if (this.#open === "port") {
      this.#shownUrl = "";
      this.#stage.replaceChildren(...state.ports.map((port) => this.#portRow(port)));
    } else {
      const url = addressOf(state, this.#open, this.#path, document.documentElement.dataset.theme);
      if (url === this.#shownUrl) return;
      this.#shownUrl = url;
      const frame = document.createElement("iframe");
      frame.title = this.#open;
      frame.src = url;
      frame.height = String(FRAME_HEIGHT);
      frame.setAttribute("allow", "fullscreen");
      this.#stage.replaceChildren(frame);
    }
  }

  #portRow(port: Port): HTMLElement {
    const row = document.createElement("p");
    const words = document.createElement("span");
    words.className = "grow";
    words.textContent = `Port ${port.port}${port.process ? ` · ${port.process}` : ""}`;
    const open = document.createElement("button");
    open.textContent = "Open ↗";
    open.onclick = () => void this.#leave(port.url);
    row.append(words, open);
    return row;
  }

  #sized(): void {
    if (!this.#begun) return;
    const { offsetWidth: width } = this.#body;
    const height = this.#line.offsetHeight + this.#stage.offsetHeight;
    this.#host.tell("ui/notifications/size-changed", { width, height });
  }
}

const view = document.documentElement.dataset.view ?? "";
const known: View[] = ["computer", "browser", "terminal", "file", "port"];
if (window.parent !== window)
  void new Card(known.includes(view as View) ? (view as View) : "computer").start().catch(() => undefined);
