/** One viewer of the live channel: its connection, what it knows, and the canvas it draws on. */

import { batch, computed, signal } from "@preact/signals";
import type { BrowserStatus } from "../common/api.generated";
import { writeClipboard } from "../common/clipboard";
import { getJson, post } from "../common/http";
import { Link } from "../common/link";
import type { Addresses } from "../common/page";
import { stir } from "../common/stirring";
import { toast } from "../ui/toast";
import {
  type Frame,
  type FromService,
  type FromViewer,
  type Popup,
  parseFrame,
  parseMessage,
  type Tab,
  type Watcher,
} from "./protocol";

const START_LIMIT_MS = 120_000;
/** Three heartbeats. */
const SILENCE_MS = 15_000;
/** A picture newer than this counts as moving. */
const LIVE_MS = 2_000;
const KEEP_MS = 20_000;

export type Control = "watching" | "asked" | "yours" | "theirs";

export class LiveView {
  readonly tabs = signal<Tab[]>([]);
  readonly active = signal("");
  /** The tab that was used last, and whether this page shows that one. */
  readonly followed = signal("");
  readonly following = signal(true);
  /** When a tab was used last, in milliseconds since 1970; 0: not since this page came. */
  readonly usedAt = signal(0);
  readonly watchers = signal<Watcher[]>([]);
  readonly unnamed = signal(0);
  readonly me = signal("");
  /** Who asks for control, while this page has it. */
  readonly asking = signal<{ viewer: string; name: string }[]>([]);
  /** Input of the model is held until control is given back. */
  readonly modelWaits = signal(false);
  readonly refusal = signal("");
  readonly history = signal({ back: false, forward: false, loading: false });
  readonly browser = signal<{ browser: string; reason: string }>({ browser: "starting", reason: "" });
  readonly control = signal<Control>("watching");
  readonly driver = signal("");
  readonly popups = signal<Popup[]>([]);
  readonly cursor = signal("default");
  readonly viewport = signal({ w: 1280, h: 800 });
  /** The tab that the picture on the canvas is of. */
  readonly pictured = signal("");
  readonly hasPicture = computed(
    () => this.pictured.value !== "" && this.pictured.value === this.active.value,
  );
  readonly link: Link;
  readonly moving = signal(false);
  readonly word = computed(() => this.#word());
  #canvas: HTMLCanvasElement | null = null;
  /** The newest picture, and the address that its tab had: a page that stands still sends no other one. */
  #last: { frame: Frame; url: string } | null = null;
  #still: ReturnType<typeof setTimeout> | undefined;
  #keep: ReturnType<typeof setInterval> | undefined;
  /** The browser was seen once: it is started again when it ends. */
  #seen: boolean;
  #view = { width: 0, visible: true };

  /** `quiet`: it only looks, and asks for nothing to be started but when a person wants it. `seen`: it goes on for another. */
  constructor(
    addresses: Addresses,
    private readonly name = "",
    quiet = false,
    seen = false,
  ) {
    this.#seen = seen;
    this.link = new Link({
      // To look starts no browser. One that ended while it was looked at comes back.
      prepare: async (_signal, wake) => {
        if (quiet && !wake) return;
        const how = wake ? "start" : this.#seen ? "start?wake=0&again=1" : "start?wake=0";
        await post(addresses.browser(how), START_LIMIT_MS);
      },
      condition: async () => {
        const { running, sandbox } = await getJson<BrowserStatus>(addresses.browser("status"));
        // To look starts no browser: it is waited for as long as it does not run.
        return running || this.#seen || sandbox !== "running" ? sandbox : "off";
      },
      open: () => new WebSocket(addresses.socket(addresses.browser("live"))),
      onOpen: () => {
        this.#seen = true;
        // What was said of the last browser does not hold for this one.
        this.browser.value = { browser: "starting", reason: "" };
        this.refusal.value = "";
        this.control.value = "watching";
        this.popups.value = [];
        this.asking.value = [];
        this.#last = null;
        if (this.name) this.send({ type: "name", name: this.name });
        this.#sendView();
      },
      onMessage: (data) => {
        if (typeof data === "string") this.#message(data);
        else void this.#frame(data);
      },
      silence: SILENCE_MS,
    });
  }

  /** Connects, if that was not done. Without a canvas no pictures come. */
  connect(): void {
    if (this.#keep !== undefined) return;
    this.link.start();
    this.#keep = setInterval(() => {
      if (this.driving && document.visibilityState === "visible")
        this.send({ type: "control", action: "keep" });
    }, KEEP_MS);
  }

  attach(canvas: HTMLCanvasElement): void {
    this.#canvas = canvas;
    this.connect();
    if (this.#last?.url === this.#url) this.#draw(this.#last.frame).catch(() => undefined);
  }

  get attached(): boolean {
    return this.#canvas !== null;
  }

  /** The canvas is gone; the connection stays, for who wants to know what is used. */
  detach(): void {
    this.#canvas = null;
    this.pictured.value = "";
    this.show(this.#view.width, false);
  }

  dispose(): void {
    clearInterval(this.#keep);
    this.#keep = undefined;
    clearTimeout(this.#still);
    this.link.stop();
  }

  get driving(): boolean {
    return this.control.value === "yours";
  }

  send(message: FromViewer): void {
    this.link.send(JSON.stringify(message));
  }

  /** Input goes out only from the one who drives. */
  drive(message: FromViewer): void {
    if (this.driving) this.send(message);
  }

  take(name: string): void {
    this.control.value = "asked";
    this.send({ type: "control", action: "take", ...(name ? { name } : {}) });
  }

  giveBack(): void {
    this.send({ type: "control", action: "return" });
  }

  /** Looks at a tab, whatever the others see; without one, follows again. */
  look(tab = ""): void {
    this.send({ type: "look", tab });
  }

  ask(): void {
    this.send({ type: "control", action: "ask" });
    toast(`${this.driver.value || "The one who drives"} was asked.`);
  }

  answer(viewer: string, action: "give" | "decline"): void {
    this.asking.value = this.asking.value.filter((one) => one.viewer !== viewer);
    this.send({ type: "control", action, viewer });
  }

  rename(name: string): void {
    this.send({ type: "name", name });
  }

  close(popup: Popup, answer: FromViewer): void {
    this.drive(answer);
    this.popups.value = this.popups.value.filter((p) => p.id !== popup.id);
  }

  show(width: number, visible: boolean): void {
    if (width === this.#view.width && visible === this.#view.visible) return;
    this.#view = { width, visible };
    this.#sendView();
  }

  #sendView(): void {
    if (this.#view.width > 0) this.send({ type: "view", ...this.#view });
  }

  #word(): { word: string; tone: string } {
    const link = this.link.state.value;
    if (link.kind === "asleep") {
      return { word: link.off ? "Not running" : link.made ? "Asleep" : "Not made yet", tone: "" };
    }
    if (link.kind === "closed") return { word: "Closed", tone: "bad" };
    if (link.kind === "waiting") return { word: "Reconnecting", tone: "warn" };
    if (link.kind === "starting") return { word: "Connecting", tone: "accent" };
    switch (this.browser.value.browser) {
      case "starting":
        return { word: "Starting", tone: "accent" };
      case "crashed":
        return { word: "Crashed", tone: "bad" };
      case "closed":
        return { word: "Closed", tone: "bad" };
      default:
        return this.moving.value ? { word: "Live", tone: "ok" } : { word: "Idle", tone: "" };
    }
  }

  async #frame(data: ArrayBuffer): Promise<void> {
    const frame = parseFrame(data);
    if (!frame) return;
    try {
      await this.#draw(frame);
    } catch {
      // a broken picture: the next one replaces it
    }
    this.send({ type: "ack", seq: frame.seq });
    this.moving.value = true;
    clearTimeout(this.#still);
    this.#still = setTimeout(() => {
      this.moving.value = false;
    }, LIVE_MS);
  }

  /** The address of the tab that is shown. */
  get #url(): string {
    return this.tabs.peek().find((tab) => tab.id === this.active.peek())?.url ?? "";
  }

  async #draw(frame: Frame): Promise<void> {
    if (frame.tab === this.active.peek()) this.#last = { frame, url: this.#url };
    const picture = await createImageBitmap(new Blob([frame.jpeg], { type: "image/jpeg" }));
    // Another tab may be shown by now: no picture stands under another one's address.
    const canvas = this.#canvas;
    if (frame.tab !== this.active.value || !canvas || (this.#last && frame.seq < this.#last.frame.seq)) {
      picture.close();
      return;
    }
    if (canvas.width !== picture.width || canvas.height !== picture.height) {
      canvas.width = picture.width;
      canvas.height = picture.height;
    }
    canvas.getContext("2d", { alpha: false })?.drawImage(picture, 0, 0);
    picture.close();
    if (frame.w !== this.viewport.value.w || frame.h !== this.viewport.value.h) {
      this.viewport.value = { w: frame.w, h: frame.h };
    }
    this.pictured.value = frame.tab;
  }

  #message(text: string): void {
    const message = parseMessage(text);
    if (message) batch(() => this.#take(message));
  }

  #take(message: FromService): void {
    switch (message.type) {
      case "hello":
        this.viewport.value = message.viewport;
        this.me.value = message.viewer;
        break;
      case "used":
        this.usedAt.value = Date.now() - message.seconds * 1000;
        break;
      case "watchers":
        this.watchers.value = message.watchers;
        this.unnamed.value = message.more;
        break;
      case "asked":
        this.asking.value = [
          ...this.asking.value.filter((one) => one.viewer !== message.viewer).slice(-4),
          { viewer: message.viewer, name: message.name },
        ];
        break;
      case "state":
        if (message.browser !== this.browser.value.browser) stir();
        this.browser.value = { browser: message.browser, reason: message.reason };
        break;
      case "tabs":
        this.tabs.value = message.tabs;
        this.active.value = message.active;
        this.followed.value = message.followed;
        this.following.value = message.following;
        this.refusal.value = message.refusal;
        this.history.value = { back: message.back, forward: message.forward, loading: message.loading };
        break;
      case "control":
        this.modelWaits.value = message.waiting === true;
        this.#held(message.holder, message.you === true);
        break;
      case "cursor":
        this.cursor.value = /^[a-z-]{1,20}$/.test(message.cursor) ? message.cursor : "default";
        break;
      case "dialog":
      case "select":
      case "picker":
      case "chooser":
        this.popups.value = [...this.popups.value.filter((p) => p.id !== message.id), message];
        break;
      case "gone":
        this.popups.value = this.popups.value.filter((p) => p.id !== message.id);
        break;
      case "copied":
        void writeClipboard(message.text).then(
          () => toast(`Copied ${message.text.length.toLocaleString()} characters.`),
          () => toast("This browser refused to copy."),
        );
        break;
      case "download":
        if (message.state === "finished") toast(`Downloaded ${message.name} to the chat's outputs.`);
        if (message.state === "failed") toast(`The download of ${message.name} failed.`);
        break;
      case "refused":
        this.#refused(message.reason);
        break;
      case "heartbeat":
        break;
    }
  }

  #held(holder: { viewer: string; name: string } | null, you: boolean): void {
    const before = this.control.value;
    this.driver.value = holder?.name ?? "";
    this.control.value = you ? "yours" : holder ? "theirs" : "watching";
    if (!you) this.asking.value = [];
    if (before === "yours" && !you) {
      this.popups.value = this.popups.value.filter((p) => p.type === "dialog");
      toast(holder ? `${holder.name || "Another person"} has control now.` : "Control was returned.");
    }
  }

  #refused(reason: string): void {
    if (this.control.value === "asked") this.control.value = "watching";
    if (reason === "held") toast("Another person has control. Ask them to return it, or wait a minute.");
    else if (reason === "no-tab") toast("There is no open tab.");
    else if (reason === "declined") toast("They want to keep control for now.");
    else if (reason === "too-often") toast("That was a moment ago. Try again soon.");
    else if (reason === "too-many")
      toast("Too many tabs are looked at. Look at one that another person looks at.");
  }
}
