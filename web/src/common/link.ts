/** A WebSocket that comes back by itself and says so. */
import { effect, type ReadonlySignal, signal } from "@preact/signals";
import { Backoff } from "./backoff";
import { shownName } from "./format";
import { HttpError } from "./http";
import { stir } from "./stirring";

export type LinkState =
  | { kind: "starting" }
  | { kind: "open" }
  | { kind: "waiting"; until: number; attempt: number; reason: string }
  | { kind: "closed"; reason: string; signIn: boolean };

export interface LinkOptions {
  /** Whatever must be true before the socket can open, such as a started terminal server. */
  prepare: (signal: AbortSignal) => Promise<void>;
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

/** What a person is told. The service says itself why it ended a connection for want of the other side. */
export function reasonOf(code: number, said = ""): { reason: string; final: boolean; signIn: boolean } {
  switch (code) {
    case 4401:
      return { reason: "You are not signed in, or the link has expired.", final: true, signIn: true };
    case 4404:
      return { reason: "There is no such chat.", final: false, signIn: false };
    case 4503:
      return { reason: "It is not running in the sandbox.", final: false, signIn: false };
    case 1000:
    case 1001:
      return { reason: "The other end closed the connection.", final: false, signIn: false };
    case 1009:
      return { reason: "A message was too large.", final: false, signIn: false };
    case 1011:
      return { reason: shownName(said) || "The sandbox closed the connection.", final: false, signIn: false };
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

  /** Connects now; also what "Reconnect now" does. */
  start(): void {
    this.#drop();
    const round = new AbortController();
    this.#round = round;
    this.#state.value = { kind: "starting" };
    this.#options
      .prepare(round.signal)
      .then(() => {
        if (!round.signal.aborted) this.#open(round);
      })
      .catch((error: unknown) => {
        if (round.signal.aborted) return;
        const status = error instanceof HttpError ? error.status : 0;
        const reason = error instanceof Error ? error.message : "It could not be started.";
        if (status === 401 || status === 403) this.#close(reason, true);
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
