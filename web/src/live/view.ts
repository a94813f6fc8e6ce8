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
  #still: ReturnType<typeof setTimeout> | undefined;
  #keep: ReturnType<typeof setInterval> | undefined;
  /** It was connected once. */
  #seen = false;
  #view = { width: 0, visible: true };

  constructor(addresses: Addresses) {
    this.link = new Link({
      // To look starts no browser. One that ended while it was looked at comes back.
      prepare: (_signal, wake) =>
        post(
          addresses.browser(wake ? "start" : this.#seen ? "start?wake=0&again=1" : "start?wake=0"),
          START_LIMIT_MS,
        ),
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
        this.#sendView();
      },
      onMessage: (data) => {
        if (typeof data === "string") this.#message(data);
        else void this.#frame(data);
      },
      silence: SILENCE_MS,
    });
  }

  attach(canvas: HTMLCanvasElement): void {
    this.#canvas = canvas;
    this.link.start();
    this.#keep = setInterval(() => {
      if (this.driving && document.visibilityState === "visible")
        this.send({ type: "control", action: "keep" });
    }, KEEP_MS);
  }

  dispose(): void {
    clearInterval(this.#keep);
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

  async #draw(frame: Frame): Promise<void> {
    const picture = await createImageBitmap(new Blob([frame.jpeg], { type: "image/jpeg" }));
    // Another tab may be shown by now: no picture stands under another one's address.
    if (frame.tab !== this.active.value) {
      picture.close();
      return;
    }
    const canvas = this.#canvas;
    if (canvas) {
      if (canvas.width !== picture.width || canvas.height !== picture.height) {
        canvas.width = picture.width;
        canvas.height = picture.height;
      }
      canvas.getContext("2d", { alpha: false })?.drawImage(picture, 0, 0);
    }
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
        break;
      case "state":
        if (message.browser !== this.browser.value.browser) stir();
        this.browser.value = { browser: message.browser, reason: message.reason };
        break;
      case "tabs":
        this.tabs.value = message.tabs;
        this.active.value = message.active;
        this.refusal.value = message.refusal;
        this.history.value = { back: message.back, forward: message.forward, loading: message.loading };
        break;
      case "control":
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
    if (before === "yours" && !you) {
      this.popups.value = this.popups.value.filter((p) => p.type === "dialog");
      toast(holder ? `${holder.name || "Another person"} has control now.` : "Control was returned.");
    }
  }

  #refused(reason: string): void {
    if (this.control.value === "asked") this.control.value = "watching";
    if (reason === "held") toast("Another person has control. Ask them to return it, or wait a minute.");
    else if (reason === "no-tab") toast("There is no open tab.");
  }
}
