/** The replay of a chat: a time line over its journal with the pictures of its browser; and the way back to live. */
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Timeline } from "../common/api.generated";
import { plainText, seconds, shownName } from "../common/format";
import { getJson } from "../common/http";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { LazyLive } from "../live/lazy";
import { ShareButton } from "../share/dialog";
import { Brand } from "../ui/brand";
import { Icon } from "../ui/icon";
import { BackToChat, Empty, IconButton, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { marksOf, type Row, TimelineModel } from "./model";
import "./timeline.css";

const SPEEDS = [1, 2, 4, 16];
const MARKS = 160;
const ASK_AGAIN_MS = 1_500;
const FAILED_MS = 5_000;
/** Rows that are in the page at once, around the current one. */
const AROUND = 60;

const clock = (at: number) =>
  Number.isFinite(at) && at > 0 && at < 8e12 ? new Date(at * 1000).toLocaleTimeString() : "";

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
    let events: EventSource | null = null;
    if (this.canBeLive) {
      events = new EventSource(this.addresses.events());
      events.onmessage = () => this.#soon();
    }
    return () => {
      events?.close();
      clearTimeout(this.#asked);
      clearTimeout(this.#timer);
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
    const atEnd = this.place.value >= this.last;
    try {
      let more = true;
      while (more) {
        const part = await getJson<Timeline>(this.addresses.timeline(this.model.next, this.model.since));
        more = part.more;
        if (this.model.add(part)) this.round.value += 1;
      }
      if (atEnd && !this.playing.value) this.place.value = this.last;
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
        <button type="button" class="primary" onClick={() => player.toggle()}>
          <Icon name={player.playing.value ? "pause" : "play"} />
          {player.playing.value ? "Pause" : "Play"}
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
  return (
    <section class="stage" aria-label="Browser">
      {frame ? (
        <>
          <p class="stage-address muted cut" title={shownName(frame.url)}>
            {shownName(frame.title || frame.url)} <span class="mono">{shownName(frame.url)}</span>
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
          <p>
            {model.frames.length
              ? "The browser was not used yet."
              : "Pictures are taken while the browser is used."}
          </p>
        </Empty>
      )}
    </section>
  );
}

function chipOf(row: Row, at: number): { tone: string; words: string } {
  if (row.kind !== "call") return { tone: "", words: row.kind };
  if (!row.end || row.end.at > at) return { tone: "accent", words: "running" };
  if (!row.end.error) return { tone: "ok", words: "done" };
  return { tone: "bad", words: row.end.code === null ? "failed" : `exit ${row.end.code}` };
}

function Steps({ player }: { player: Player }) {
  const { model } = player;
  const moment = model.moments[player.place.value];
  const current = moment?.row ?? -1;
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [current, player.round.value]);
  const from = Math.max(0, current - AROUND);
  const shown = model.rows.slice(from, current + AROUND);
  return (
    <ol class="steps" ref={list} start={from + 1} aria-label="What happened">
      {shown.map((row, i) => {
        const place = from + i;
        const chip = chipOf(row, moment?.at ?? 0);
        const open = place === current;
        return (
          <li key={row.n} class={row.at > (moment?.at ?? 0) ? "future" : ""}>
            <button
              type="button"
              class="plain step"
              aria-current={open ? "step" : undefined}
              onClick={() => {
                player.pause();
                player.go(model.momentOf(place));
              }}
            >
              <span class={`chip ${chip.tone}`}>{chip.words}</span>
              <span class="cut grow">{shownName(row.title || row.tool)}</span>
              <span class="muted">
                {row.end && row.end.at <= (moment?.at ?? 0) ? seconds(row.end.seconds) : clock(row.at)}
              </span>
            </button>
            {open && row.kind === "call" && <Detail row={row} at={moment?.at ?? 0} />}
          </li>
        );
      })}
    </ol>
  );
}

function Detail({ row, at }: { row: Row; at: number }) {
  const printed = row.end && row.end.at <= at ? row.end.text : "";
  return (
    <div class="step-detail">
      {row.text && <pre class="asked">{plainText(row.text)}</pre>}
      {printed && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        <pre role="group" tabIndex={0} aria-label="Output">
          {plainText(printed)}
        </pre>
      )}
    </div>
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
          <Steps player={player} />
        </main>
      )}
      {state === "ready" && !empty && <Controls player={player} />}
    </div>
  );
}

start(<Page page={readPage()} />);
