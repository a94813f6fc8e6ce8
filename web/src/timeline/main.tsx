/** The replay of a chat: a time line over its journal with the pictures of its browser; and the way back to live. */
import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Timeline } from "../common/api.generated";
import { Backoff } from "../common/backoff";
import { shownName } from "../common/format";
import { getJson } from "../common/http";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { LazyLive } from "../live/lazy";
import { ShareButton } from "../share/dialog";
import { Brand } from "../ui/brand";
import { Icon } from "../ui/icon";
import { BackToChat, Empty, IconButton, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { clock, marksOf, TimelineModel } from "./model";
import { Detail, Steps, stateAt, wordsOf } from "./steps";
import "./timeline.css";

const SPEEDS = [1, 2, 4, 16];
const MARKS = 160;
const ASK_AGAIN_MS = 1_500;
const FAILED_MS = 5_000;

class Player {
  readonly model = new TimelineModel();
  /** Counts what came: the model itself is no signal. */
  readonly round = signal(0);
  readonly place = signal(0);
  readonly playing = signal(false);
  readonly live = signal(false);
  readonly speed = signal(2);
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly reason = signal("");
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asked: ReturnType<typeof setTimeout> | undefined;
  #asking = false;
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 30_000);

  constructor(
    readonly addresses: Addresses,
    readonly canBeLive: boolean,
  ) {}

  get last(): number {
    return Math.max(0, this.model.moments.length - 1);
  }

  /** Loads all that there is, then what comes. */
  start(): () => void {
    void this.#load();
    if (this.canBeLive) this.#listen();
    return () => {
      this.#source?.close();
      clearTimeout(this.#again);
      clearTimeout(this.#asked);
      clearTimeout(this.#timer);
    };
  }

  /** An answer that is no stream ends one for good: a proxy gives such while the service is started again. */
  #listen(): void {
    const source = new EventSource(this.addresses.events());
    this.#source = source;
    source.onopen = () => this.#pauses.reset();
    source.onmessage = () => this.#soon();
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      this.#again = setTimeout(() => this.#listen(), this.#pauses.next());
    };
  }

  #soon(delay = ASK_AGAIN_MS): void {
    if (this.#asked !== undefined) return;
    this.#asked = setTimeout(() => {
      this.#asked = undefined;
      void this.#load();
    }, delay);
  }

  async #load(): Promise<void> {
    if (this.#asking) {
      this.#soon();
      return;
    }
    this.#asking = true;
    try {
      let more = true;
      while (more) {
        const part = await getJson<Timeline>(this.addresses.timeline(this.model.next, this.model.since));
        more = part.more;
        const atEnd = this.place.value >= this.last; // now, not when it was asked for: a person may have moved since
        if (this.model.add(part)) this.round.value += 1;
        if (atEnd && !this.playing.value) this.place.value = this.last;
      }
      this.state.value = "ready";
    } catch (error) {
      this.reason.value = error instanceof Error ? error.message : "The replay could not be loaded.";
      if (this.state.value !== "ready") this.state.value = "failed";
      this.#soon(FAILED_MS);
    }
    this.#asking = false;
  }

  go(place: number): void {
    this.live.value = false;
    this.place.value = Math.min(this.last, Math.max(0, place));
  }

  /** The next or the last moment at which another row begins. */
  step(by: 1 | -1): void {
    this.pause();
    const row = this.model.moments[this.place.value]?.row ?? -1;
    let place = this.place.value;
    while (place + by >= 0 && place + by <= this.last) {
      place += by;
      if (this.model.moments[place]?.row !== row) break;
    }
    this.go(place);
  }

  toggle(): void {
    if (this.playing.value) {
      this.pause();
      return;
    }
    if (this.place.value >= this.last) this.place.value = 0;
    this.live.value = false;
    this.playing.value = true;
    this.#next();
  }

  pause(): void {
    clearTimeout(this.#timer);
    this.playing.value = false;
  }

  goLive(): void {
    this.pause();
    this.place.value = this.last;
    this.live.value = true;
  }

  #next(): void {
    if (this.place.value >= this.last) {
      this.pause();
      return;
    }
    this.#timer = setTimeout(
      () => {
        this.place.value = Math.min(this.last, this.place.value + 1);
        this.#next();
      },
      this.model.pause(this.place.value, this.speed.value),
    );
  }
}

function Controls({ player }: { player: Player }) {
  const { model } = player;
  const place = player.place.value;
  const moment = model.moments[place];
  const marks = useMemo(() => marksOf(model, MARKS), [model, player.round.value]);
  return (
    <section class="timeline-controls" aria-label="Playback">
      <div class="timeline-buttons">
        <IconButton icon="back" label="Step back" disabled={place === 0} onClick={() => player.step(-1)} />
        <button
          type="button"
          class="primary"
          aria-label={player.playing.value ? "Pause" : "Play"}
          onClick={() => player.toggle()}
        >
          <Icon name={player.playing.value ? "pause" : "play"} />
          <span class="wide-only">{player.playing.value ? "Pause" : "Play"}</span>
        </button>
        <IconButton
          icon="forward"
          label="Step on"
          disabled={place >= player.last}
          onClick={() => player.step(1)}
        />
        <label>
          <span class="visually-hidden">Speed</span>
          <select
            value={String(player.speed.value)}
            onChange={(event) => {
              player.speed.value = Number(event.currentTarget.value);
            }}
          >
            {SPEEDS.map((speed) => (
              <option key={speed} value={String(speed)}>
                {speed}×
              </option>
            ))}
          </select>
        </label>
        <output class="muted grow cut">
          {place + 1} / {player.last + 1} · {clock(moment?.at ?? 0)}
        </output>
        {player.canBeLive && (
          <button type="button" aria-pressed={player.live.value} onClick={() => player.goLive()}>
            <span class="live-dot" aria-hidden="true" />
            {player.live.value ? "Live" : "Jump to live"}
          </button>
        )}
      </div>
      <div class="timeline-line">
        <div class="marks" aria-hidden="true">
          {marks.map((mark, i) => (
            <i key={i} class={mark} />
          ))}
        </div>
        <input
          type="range"
          min={0}
          max={player.last}
          value={place}
          aria-label="Time line"
          aria-valuetext={`${place + 1} of ${player.last + 1}, ${clock(moment?.at ?? 0)}`}
          onInput={(event) => {
            player.pause();
            player.go(Number(event.currentTarget.value));
          }}
        />
      </div>
    </section>
  );
}

/** Of a chat whose browser was never used, the command that ran then. */
function Command({ player }: { player: Player }) {
  const moment = player.model.moments[player.place.value];
  const row = player.model.rows[moment?.row ?? -1];
  if (!moment || !row) return null;
  const state = stateAt(row, moment.at);
  return (
    <section class="stage command" aria-label="Step">
      <h2 class="stage-address">
        <span class="cut grow">{wordsOf(row)}</span>
        {state && <span class={`chip ${state.tone}`}>{state.words}</span>}
      </h2>
      <Detail row={row} at={moment.at} />
    </section>
  );
}

/** What the browser showed then. */
function Stage({ player }: { player: Player }) {
  const { model, addresses } = player;
  const moment = model.moments[player.place.value];
  const frame = model.frames[moment?.frame ?? -1];
  const following = model.frames[(moment?.frame ?? -1) + 1];
  useEffect(() => {
    if (following) new Image().src = addresses.frame(following.id);
  }, [following?.id]);
  if (player.live.value)
    return (
      <section class="stage" aria-label="Live browser">
        <LazyLive addresses={addresses} alone={false} />
      </section>
    );
  if (model.frames.length === 0) return <Command player={player} />;
  return (
    <section class="stage" aria-label="Browser">
      {frame ? (
        <>
          <p class="stage-address" title={shownName(frame.url)}>
            <Icon name="browser" />
            <span class="cut">{shownName(frame.title || frame.url)}</span>
            {frame.title && <span class="mono muted cut">{shownName(frame.url)}</span>}
          </p>
          <img
            src={addresses.frame(frame.id)}
            width={frame.width}
            height={frame.height}
            alt={`The browser at ${clock(frame.at)}: ${shownName(frame.title || frame.url)}`}
          />
        </>
      ) : (
        <Empty icon="browser" title="No picture of the browser from this time">
          <p>The browser was not used yet.</p>
        </Empty>
      )}
    </section>
  );
}

function Page({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const whole = page.opens === "chat";
  const player = useMemo(() => new Player(addresses, whole), [addresses, whole]);
  useEffect(() => player.start(), [player]);
  const state = player.state.value;
  const empty = state === "ready" && player.model.moments.length === 0;
  player.round.value; // what came is drawn
  return (
    <div class="timeline">
      <header class="bar top">
        <Brand home={whole && !addresses.viewOnly ? addresses.root.href : undefined} short />
        <h1>Replay</h1>
        {whole ? (
          <BackToChat addresses={addresses} />
        ) : (
          <span class="cut muted">{shownName(addresses.chat)}</span>
        )}
        <span class="grow" />
        <ShareButton page={page} addresses={addresses} opens="replay" />
        {whole && (
          <a
            class="button plain"
            href={addresses.replay()}
            download
            aria-label="Download replay"
            title="Download replay"
          >
            <Icon name="download" />
          </a>
        )}
        <ThemeButton />
      </header>
      {whole && <ViewOnlyNotice addresses={addresses} />}
      {state === "failed" && (
        <p class="notice bad" role="alert">
          {player.reason.value}
        </p>
      )}
      {state === "loading" && (
        <main class="empty">
          <p role="status">Loading…</p>
        </main>
      )}
      {empty && (
        <main class="empty">
          <Empty icon="history" title="Nothing was done in this chat yet">
            <p>When the model calls a tool, it is recorded here.</p>
          </Empty>
        </main>
      )}
      {state === "ready" && !empty && (
        <main class="timeline-main">
          <Stage player={player} />
          <Steps
            model={player.model}
            place={player.place.value}
            round={player.round.value}
            detailed={player.live.value || player.model.frames.length > 0}
            onGo={(place) => {
              player.pause();
              player.go(place);
            }}
          />
        </main>
      )}
      {state === "ready" && !empty && <Controls player={player} />}
    </div>
  );
}

start(<Page page={readPage()} />);
