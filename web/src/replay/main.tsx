/** A chat's journal as a file of its own: everything that was done, at the pace at which it happened. No service is needed. */

import { signal, useSignal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { plainText, seconds, shownName } from "../common/format";
import { codeOf, gist, options, stateOf, task } from "../workspace/calls";
import { Diff } from "../workspace/diff";
import { type Item, outputAt, pauseAfter, type Replay, readReplay, undoneAt } from "./journal";
import "../ui/base.css";
import "./replay.css";

const SPEEDS = [1, 4, 16, 64];
const TONES = { running: "accent", done: "ok", failed: "bad" };

const clock = (at: number) =>
  Number.isFinite(at) && Math.abs(at) < 8e12 ? new Date(at * 1000).toLocaleString() : "";

class Player {
  readonly place = signal(0);
  readonly playing = signal(false);
  readonly speed = signal(4);
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly replay: Replay) {
    this.place.value = this.last;
  }

  get last(): number {
    return Math.max(0, this.replay.entries.length - 1);
  }

  go(place: number): void {
    this.place.value = Math.min(this.last, Math.max(0, place));
  }

  toggle(): void {
    if (this.playing.value) {
      this.pause();
      return;
    }
    if (this.place.value >= this.last) this.place.value = 0;
    this.playing.value = true;
    this.#next();
  }

  pause(): void {
    clearTimeout(this.#timer);
    this.playing.value = false;
  }

  #next(): void {
    if (this.place.value >= this.last) {
      this.pause();
      return;
    }
    const pause = pauseAfter(this.replay, this.place.value, this.speed.value);
    this.#timer = setTimeout(() => {
      this.go(this.place.value + 1);
      this.#next();
    }, pause);
  }
}

function Controls({ player }: { player: Player }) {
  const place = player.place.value;
  const entry = player.replay.entries[place];
  return (
    <section class="controls" aria-label="Playback">
      <button type="button" onClick={() => player.go(place - 1)} disabled={place === 0}>
        Back
      </button>
      <button type="button" class="primary" onClick={() => player.toggle()}>
        {player.playing.value ? "Pause" : "Play"}
      </button>
      <button type="button" onClick={() => player.go(place + 1)} disabled={place >= player.last}>
        Next
      </button>
      <label>
        Speed{" "}
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
      <input
        type="range"
        class="grow"
        min={0}
        max={player.last}
        value={place}
        aria-label="Time line"
        aria-valuetext={`${place + 1} of ${player.last + 1}, ${clock(entry?.at ?? 0)}`}
        onInput={(event) => {
          player.pause();
          player.go(Number(event.currentTarget.value));
        }}
      />
      <output class="muted">
        {place + 1} / {player.last + 1} · {clock(entry?.at ?? 0)}
      </output>
    </section>
  );
}

function Chip({ item, place }: { item: Item; place: number }) {
  if (!item.call) return <span class="chip">{item.kind}</span>;
  if (place < item.begin) return <span class="chip">later</span>;
  if (place < item.end) return <span class="chip accent">running</span>;
  return <span class={`chip ${TONES[item.call.state]}`}>{stateOf(item.call)}</span>;
}

function Row(props: { item: Item; place: number; current: boolean; onChoose: () => void }) {
  const { item, place, current } = props;
  const row = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (current) row.current?.scrollIntoView({ block: "nearest" });
  }, [current]);
  const { call } = item;
  return (
    <li ref={row}>
      <button
        type="button"
        class={`plain row ${item.begin > place ? "future" : ""}`}
        aria-current={current ? "step" : undefined}
        onClick={props.onChoose}
      >
        <Chip item={item} place={place} />
        <strong>{call ? shownName(call.tool) : ""}</strong>
        <span class="cut grow">{shownName(call ? call.description || gist(call) : item.text)}</span>
        {call && place >= item.end && call.seconds !== null && (
          <span class="muted">{seconds(call.seconds)}</span>
        )}
      </button>
    </li>
  );
}

function Text({ label, text, kind = "" }: { label: string; text: string; kind?: string }) {
  if (!text) return null;
  return (
    <>
      <h3>{label}</h3>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <pre class={kind} role="group" tabIndex={0} aria-label={label}>
        {plainText(text)}
      </pre>
    </>
  );
}

function Detail({ item, place }: { item: Item; place: number }) {
  const { call } = item;
  if (!call) return <p class="note">{plainText(item.text)}</p>;
  const over = place >= item.end;
  const output = outputAt(item, place);
  return (
    <>
      <p class="facts">
        <Chip item={item} place={place} />
        {undoneAt(item, place) && <span class="chip warn">undone</span>}
        <span class="muted">
          {[
            clock(item.at),
            item.user && `for ${shownName(item.user)}`,
            over && codeOf(call),
            over && call.seconds !== null && seconds(call.seconds),
          ]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </p>
      {call.description && <p class="note">{plainText(call.description)}</p>}
      <Text label="Asked for" text={task(call)} kind="task" />
      {options(call).map((option) => (
        <code key={option}>{plainText(option)}</code>
      ))}
      {over && <Diff call={call} />}
      <Text label="Output" text={output} />
      {over && (
        <>
          <Text label="Answer" text={call.result} />
          {call.notes.map((note, i) => (
            <p key={i} class={`note ${call.state === "failed" ? "bad" : ""}`}>
              {plainText(note)}
            </p>
          ))}
          {item.pictures.map((picture, i) => (
            <img
              key={i}
              src={`data:${picture.type};base64,${picture.data}`}
              alt={`Shown by the call, ${i + 1} of ${item.pictures.length}`}
            />
          ))}
        </>
      )}
    </>
  );
}

function Page({ player }: { player: Player }) {
  const { replay } = player;
  const filter = useSignal("");
  const place = player.place.value;
  const current = replay.entries[place]?.item ?? -1;
  const wanted = filter.value.toLowerCase();
  const seen = (item: Item) =>
    `${item.call?.tool ?? item.kind} ${item.call?.description ?? ""} ${item.call ? task(item.call) : item.text}`
      .toLowerCase()
      .includes(wanted);
  const shown = replay.items[current];
  const calls = replay.items.filter((item) => item.call).length;
  return (
    <>
      <header class="top">
        <h1 class="cut">{shownName(replay.chat) || "A chat"}</h1>
        <span class="muted">
          {calls.toLocaleString("en")} calls · saved {clock(replay.made)}
        </span>
        <span class="grow" />
        <input
          type="search"
          placeholder="Filter"
          aria-label="Filter"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
      </header>
      {replay.entries.length === 0 ? (
        <main class="empty">
          <p>The journal of this chat is empty.</p>
        </main>
      ) : (
        <>
          <Controls player={player} />
          <main>
            <ol class="rows" aria-label="What happened">
              {replay.items.map((item, i) =>
                wanted === "" || seen(item) ? (
                  <Row
                    key={i}
                    item={item}
                    place={place}
                    current={i === current}
                    onChoose={() => {
                      player.pause();
                      player.go(item.end > player.last ? item.begin : item.end);
                    }}
                  />
                ) : null,
              )}
            </ol>
            <section class="detail" aria-label="Details">
              <h2>{shown?.call ? shownName(shown.call.tool) : (shown?.kind ?? "")}</h2>
              {shown && <Detail key={current} item={shown} place={place} />}
            </section>
          </main>
        </>
      )}
    </>
  );
}

const data = document.getElementById("journal")?.textContent ?? "";
const player = new Player(readReplay(data));
document.title = `${shownName(player.replay.chat) || "A chat"}: replay`;
const app = document.getElementById("app");
if (app) {
  app.replaceChildren();
  render(<Page player={player} />, app);
}
