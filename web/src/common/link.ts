/**
 * A WebSocket that comes back by itself and says so. It starts no computer by itself: one that was stopped stays so until
 * a person wants it up, or until something else has started it.
 */
import { effect, type ReadonlySignal, signal } from "@preact/signals";
import { Backoff } from "./backoff";
import { forPeople, shownName } from "./format";
import { HttpError, isAsleep, isNotStarted, isUnmade } from "./http";
import { stir } from "./stirring";

export type LinkState =
  | { kind: "starting" }
  | { kind: "open" }
  | { kind: "waiting"; until: number; attempt: number; reason: string }
  /** `off`: the computer is up, the program is not. */
  | { kind: "asleep"; reason: string; made: boolean; off?: boolean }
  | { kind: "closed"; reason: string; signIn: boolean };

export interface LinkOptions {
  /** Whatever must be true before the socket can open, such as a started terminal server; `wake`: and the computer up. */
  prepare: (signal: AbortSignal, wake: boolean) => Promise<void>;
  /** The state of the chat's computer, without waking it. */
  condition: () => Promise<string>;
  open: () => WebSocket;
  onOpen: (socket: WebSocket) => void;
  onMessage: (data: string | ArrayBuffer) => void;
  /** Milliseconds without a message after which the connection counts as dead; 0: never. */
  silence?: number;
  backoff?: Backoff;
}

/** A connection that held this long was a good one: the next wait is short again. */
const STABLE_MS = 5_000;
const OPEN_LIMIT_MS = 15_000;
/** How often to look whether a computer that sleeps is up again. */
const LOOK_MS = 4_000;

const NO_SUCH_CHAT = 4404;
const STOPPED = 4410;

/** What a person is told. The service says itself why it ended a connection for want of the other side. */
export function reasonOf(code: number, said = ""): { reason: string; final: boolean; signIn: boolean } {
  switch (code) {
    case 4401:
      return { reason: "You are not signed in, or the link has expired.", final: true, signIn: true };
    case 4503:
      return { reason: "It is not running.", final: false, signIn: false };
    case 1000:
    case 1001:
      return { reason: "The other end closed the connection.", final: false, signIn: false };
    case 1009:
      return { reason: "A message was too large.", final: false, signIn: false };
    case 1011:
      return {
        reason: forPeople(shownName(said)) || "The computer closed the connection.",
        final: false,
        signIn: false,
      };
    default:
      return { reason: "The connection was lost.", final: false, signIn: false };
  }
}

export class Link {
  readonly #state = signal<LinkState>({ kind: "starting" });
  readonly #options: LinkOptions;
  readonly #backoff: Backoff;
  #socket: WebSocket | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #silence: ReturnType<typeof setTimeout> | undefined;
  #round: AbortController | null = null;
  #openedAt = 0;

  constructor(options: LinkOptions) {
    this.#options = options;
    this.#backoff = options.backoff ?? new Backoff();
    effect(() => {
      if (this.#state.value.kind !== "starting") stir();
    });
  }

  get state(): ReadonlySignal<LinkState> {
    return this.#state;
  }

  get socket(): WebSocket | null {
    return this.#socket?.readyState === WebSocket.OPEN ? this.#socket : null;
  }

  /** Connects now; also what "Reconnect now" does. With `wake` the computer is started, or made. */
  start(wake = false): void {
    this.#drop();
    const round = new AbortController();
    this.#round = round;
    this.#state.value = { kind: "starting" };
    this.#options
      .prepare(round.signal, wake)
      .then(() => {
        if (!round.signal.aborted) this.#open(round);
      })
      .catch((error: unknown) => {
        if (round.signal.aborted) return;
        const status = error instanceof HttpError ? error.status : 0;
        const reason = error instanceof Error ? error.message : "It could not be started.";
        if (isAsleep(error)) this.#sleep(reason, true);
        else if (isUnmade(error)) this.#sleep("", false);
        else if (isNotStarted(error)) this.#sleep(reason, true, true);
        else if (status === 401 || status === 403) this.#close(reason, true);
        else if (status === 400) this.#close(reason, false);
        else this.#wait(reason);
      });
  }

  stop(): void {
    this.#drop();
    this.#close("Disconnected.", false);
  }

  send(data: string | Uint8Array<ArrayBuffer>): boolean {
    const socket = this.socket;
    if (!socket) return false;
    socket.send(data);
    return true;
  }

  #open(round: AbortController): void {
    const socket = this.#options.open();
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    const limit = setTimeout(() => socket.close(), OPEN_LIMIT_MS);
    socket.onopen = () => {
      clearTimeout(limit);
      this.#openedAt = Date.now();
      this.#state.value = { kind: "open" };
      this.#listen();
      this.#options.onOpen(socket);
    };
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => {
      this.#listen();
      this.#options.onMessage(event.data);
    };
    socket.onclose = (event) => {
      clearTimeout(limit);
      clearTimeout(this.#silence);
      if (round.signal.aborted) return;
      this.#socket = null;
      if (this.#openedAt && Date.now() - this.#openedAt > STABLE_MS) this.#backoff.reset();
      this.#openedAt = 0;
      if (event.code === STOPPED || event.code === NO_SUCH_CHAT) {
        this.#sleep(shownName(event.reason), event.code === STOPPED);
        return;
      }
      const { reason, final, signIn } = reasonOf(event.code, event.reason);
      if (final) this.#close(reason, signIn);
      else this.#wait(reason);
    };
  }

  #listen(): void {
    clearTimeout(this.#silence);
    const limit = this.#options.silence ?? 0;
    if (limit) this.#silence = setTimeout(() => this.#lost(), limit);
  }

  /** A half-open connection: closing it can take minutes, so it is let go of at once. */
  #lost(): void {
    this.#drop();
    this.#wait("The service went silent.");
  }

  #wait(reason: string): void {
    const delay = this.#backoff.next();
    this.#state.value = {
      kind: "waiting",
      until: Date.now() + delay,
      attempt: this.#backoff.attempt,
      reason,
    };
    this.#timer = setTimeout(() => this.start(), delay);
  }

  #sleep(reason: string, made: boolean, off = false): void {
    this.#state.value = { kind: "asleep", reason: forPeople(reason), made, ...(off ? { off } : {}) };
    this.#timer = setTimeout(() => void this.#look(), LOOK_MS);
  }

  /** Somebody else may have started it meanwhile: the model, by a call. */
  async #look(): Promise<void> {
    const round = this.#round;
    const found =
      document.visibilityState === "visible" ? await this.#options.condition().catch(() => "") : "";
    const state = this.#state.peek();
    if (round !== this.#round || state.kind !== "asleep") return;
    if (found === "running" || found === "starting") this.start();
    else if (found === "none" && state.made) this.#sleep("", false);
    else this.#timer = setTimeout(() => void this.#look(), LOOK_MS);
  }

  #close(reason: string, signIn: boolean): void {
    this.#state.value = { kind: "closed", reason, signIn };
  }

  #drop(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#round?.abort();
    this.#round = null;
    this.#socket?.close();
    this.#socket = null;
    this.#openedAt = 0;
  }
}
