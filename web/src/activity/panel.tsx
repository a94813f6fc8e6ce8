/** Every tool call as it happens. */
import { useSignal } from "@preact/signals";
import { useCallback, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { Empty, IconButton } from "../ui/parts";
import type { Call } from "../workspace/calls";
import type { Files } from "../workspace/files";
import "./activity.css";
import { CallCard } from "./card";
import { copyText } from "./code";
import { asMarkdown } from "./markdown";
import { namedResult, type Result, writtenBy } from "./results";
import { type Row, refusedPlaces, rowsOf } from "./rows";
import type { Activity } from "./stream";
import { useVirtual } from "./virtual";
import { sentenceOf, standing, timeOfDay } from "./words";

export interface PanelProps {
  activity: Activity;
  addresses: Addresses;
  files: Files;
  onOpen: (path: string) => void;
}

type Shown = Row | { kind: "top"; key: string };

const HEIGHTS = { top: 36, call: 48, reads: 44, refusals: 28, note: 24, day: 28 };
/** A call that is open before anybody saw it. */
const OPEN_HEIGHT = 220;
const PAGE = 10;

/** Runs and failures are open until somebody closes them, the rest is closed until somebody opens it. */
const opensItself = (call: Call) => call.state !== "done";

function Top({ activity }: { activity: Activity }) {
  const { value } = activity.past;
  return (
    <div class="calls-kept muted">
      <span>The latest calls, as the journal has them.</span>
      {activity.mayHaveMore && (
        <button
          type="button"
          class="row-head"
          aria-disabled={value === "reading"}
          onClick={() => void activity.readEarlier()}
        >
          {value === "reading" ? "Reading…" : value === "failed" ? "Try again" : "Show earlier calls"}
        </button>
      )}
    </div>
  );
}

function Reads({ row, onToggle }: { row: Extract<Row, { kind: "reads" }>; onToggle: () => void }) {
  const names = row.calls.map((call) => shownName((call.arguments.path ?? "").replace(/^.*\/(?=.)/, "")));
  return (
    <div class="call">
      <button type="button" class="plain call-head row-head" aria-expanded={row.open} onClick={onToggle}>
        <Icon name="file" />
        <span class="call-title">
          <span class="call-line">
            <strong>Read</strong> <span class="call-object">{`${row.calls.length} files and folders`}</span>
          </span>
          {!row.open && <span class="call-detail">{names.slice(0, 8).join(", ")}</span>}
        </span>
        <span class="call-facts">
          <span class="muted">
            <time>{timeOfDay(row.calls[0]?.at ?? 0)}</time>
          </span>
        </span>
      </button>
    </div>
  );
}

function Refusals({ row, onToggle }: { row: Extract<Row, { kind: "refusals" }>; onToggle: () => void }) {
  return (
    <div class="event muted">
      <button type="button" class="plain refusals row-head" aria-expanded={row.open} onClick={onToggle}>
        <Icon name="chevron" />
        <span class="cut">{shownName(refusalWords(row.calls))}</span>
      </button>
      <span class="grow" />
      <time>{timeOfDay(row.calls[0]?.at ?? 0)}</time>
    </div>
  );
}

const refusalWords = (calls: readonly Call[]): string =>
  `Not let through: ${calls.length} connections, to ${refusedPlaces(calls).slice(0, 6).join(", ")}`;

/** The news in words, for those who hear the page. */
function News({ calls }: { calls: readonly Call[] }) {
  const last = calls.findLast((call) => call.note === undefined);
  return (
    <p class="visually-hidden" role="status">
      {last ? `${shownName(sentenceOf(last))}, ${standing(last)}` : ""}
    </p>
  );
}

export function ActivityPanel(props: PanelProps) {
  const { activity } = props;
  const filter = useSignal("");
  const all = useSignal(false);
  const calls = activity.calls.value;
  const none = calls.every((call) => call.note !== undefined);
  return (
    <section class="panel" aria-label="Activity">
      <header class="bar">
        <h2>Activity</h2>
        {activity.state.value === "lost" && <span class="chip warn">Reconnecting</span>}
        <span class="grow" />
        <input
          type="search"
          class="bar-filter"
          placeholder="Filter"
          aria-label="Filter calls"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
        <button
          type="button"
          aria-pressed={all.value}
          onClick={() => {
            all.value = !all.value;
          }}
        >
          Expand all
        </button>
        <a
          class="button plain"
          href={props.addresses.replay()}
          download
          aria-label="Download replay"
          title="Download replay"
        >
          <Icon name="download" />
        </a>
        <IconButton
          icon="copy"
          label="Copy as Markdown"
          disabled={!calls.length}
          onClick={() => copyText(asMarkdown(calls), "Copied as Markdown.")}
        />
      </header>
      <News calls={calls} />
      {none ? (
        <div class="panel-body">
          <Empty
            icon="activity"
            title={activity.state.value === "none" ? "No activity to show" : "No calls yet"}
          >
            <p>What the model does on this computer appears here as it happens.</p>
          </Empty>
          {calls.map((call) => (
            <p key={call.id} class="event muted">
              <span class="cut grow">{shownName(call.note ?? "")}</span> <time>{timeOfDay(call.at)}</time>
            </p>
          ))}
        </div>
      ) : (
        <List {...props} calls={calls} wanted={filter.value.trim().toLowerCase()} all={all.value} />
      )}
    </section>
  );
}

function useResults(calls: readonly Call[], files: Files): (call: Call) => readonly Result[] {
  const entries = files.folders.value;
  const written = useMemo(
    () =>
      writtenBy(
        calls,
        [...entries.values()].flat().filter((entry) => entry.root === "outputs" && entry.kind === "file"),
      ),
    [calls, entries],
  );
  return useCallback(
    (call) => {
      const named = namedResult(call);
      return named ? [named] : (written.get(call.id) ?? []);
    },
    [written],
  );
}

function List(props: PanelProps & { calls: readonly Call[]; wanted: string; all: boolean }) {
  const { calls, wanted, all, activity } = props;
  const scroller = useRef<HTMLDivElement>(null);
  /** What the person chose of single rows. */
  const chosen = useSignal<ReadonlyMap<string, boolean>>(new Map());
  const open = useMemo(
    () => new Set([...chosen.value].filter(([, on]) => on).map(([key]) => key)),
    [chosen.value],
  );
  const rows = useMemo<Shown[]>(
    () => [{ kind: "top", key: "top" }, ...rowsOf(calls, wanted, open, all || wanted !== "")],
    [calls, wanted, open, all],
  );
  const at = useMemo(() => new Map(rows.map((row, i) => [row.key, i])), [rows]);
  const results = useResults(calls, props.files);
  const isOpen = (call: Call) => chosen.value.get(call.id) ?? (all || opensItself(call));
  const toggle = (key: string, now: boolean) => {
    chosen.value = new Map(chosen.value).set(key, !now);
  };
  const focused = useRef("");
  const wantsFocus = useRef(-1);
  const list = useVirtual(scroller, {
    count: rows.length,
    keyOf: (i) => rows[i]?.key ?? "",
    estimate: (i) => {
      const row = rows[i] as Shown;
      return row.kind === "call" && isOpen(row.call) ? OPEN_HEIGHT : HEIGHTS[row.kind];
    },
    held: () => (wantsFocus.current >= 0 ? wantsFocus.current : (at.get(focused.current) ?? -1)),
  });
  useLayoutEffect(() => {
    if (wantsFocus.current < 0) return;
    const row = scroller.current?.querySelector<HTMLElement>(`[data-index="${wantsFocus.current}"]`);
    if (!row) return;
    (row.querySelector<HTMLElement>(".row-head") ?? row).focus({ preventScroll: true });
    wantsFocus.current = -1;
  });
  // The list holds the row at its upper edge. Where that is the one above all calls, those that are read earlier come
  // below it: what was the first call stays where it is.
  const first = calls[0]?.id;
  const before = useRef(first);
  useLayoutEffect(() => {
    const known = before.current;
    before.current = first;
    const box = scroller.current;
    const top = list.getOffsetForIndex(1, "start")?.[0] ?? 0;
    if (!box || known === first || box.scrollTop >= top) return;
    const place = rows.findIndex((row) => callsOf(row).some((call) => call.id === known));
    if (place > 1) box.scrollTop += (list.getOffsetForIndex(place, "start")?.[0] ?? top) - top;
  }, [first]);
  const goTo = (index: number) => {
    wantsFocus.current = Math.max(0, Math.min(rows.length - 1, index));
    list.scrollToIndex(wantsFocus.current, { align: "auto" });
    list.options.onChange(list, false);
  };
  const onKey = (event: KeyboardEvent) => {
    if (!(event.target instanceof HTMLElement) || event.altKey || event.ctrlKey || event.metaKey) return;
    const row = event.target.closest<HTMLElement>("[data-index]");
    if (!row || !(event.target === row || event.target.classList.contains("row-head"))) return;
    const here = Number(row.dataset.index);
    const targets: Record<string, number> = {
      ArrowDown: here + 1,
      ArrowUp: here - 1,
      PageDown: here + PAGE,
      PageUp: here - PAGE,
      Home: 0,
      End: rows.length - 1,
    };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    goTo(target);
  };
  return (
    <>
      <div class="panel-body calls-scroll" ref={scroller}>
        <div
          role="feed"
          aria-label="Tool calls"
          class="calls"
          style={{ height: `${list.getTotalSize()}px` }}
          onKeyDown={onKey}
          onFocusCapture={(event) => {
            const row = (event.target as HTMLElement).closest<HTMLElement>("[data-index]");
            focused.current = rows[Number(row?.dataset.index ?? -1)]?.key ?? "";
          }}
          onBlurCapture={() => {
            focused.current = "";
          }}
        >
          {list.getVirtualItems().map((item) => {
            const row = rows[item.index];
            return row ? (
              <div
                key={item.key}
                ref={list.measureElement}
                data-index={item.index}
                role="article"
                tabIndex={-1}
                aria-posinset={item.index + 1}
                aria-setsize={rows.length}
                aria-label={labelOf(row)}
                class="virtual-row"
                style={{ transform: `translateY(${item.start}px)` }}
              >
                {row.kind === "top" && <Top activity={activity} />}
                {row.kind === "day" && <h3 class="day">{row.day}</h3>}
                {row.kind === "reads" && <Reads row={row} onToggle={() => toggle(row.key, row.open)} />}
                {row.kind === "refusals" && <Refusals row={row} onToggle={() => toggle(row.key, row.open)} />}
                {row.kind === "note" && (
                  <p class="event muted">
                    <span class="cut grow">{shownName(row.call.note ?? "")}</span>{" "}
                    <time>{timeOfDay(row.call.at)}</time>
                  </p>
                )}
                {row.kind === "call" && (
                  <CallCard
                    call={row.call}
                    open={isOpen(row.call)}
                    inner={row.inner}
                    results={results(row.call)}
                    addresses={props.addresses}
                    onToggle={() => toggle(row.call.id, isOpen(row.call))}
                    onOpen={props.onOpen}
                  />
                )}
              </div>
            ) : null;
          })}
        </div>
      </div>
      {!list.isAtEnd(80) && (
        <button type="button" class="calls-latest" onClick={() => list.scrollToEnd()}>
          <Icon name="download" /> Latest
        </button>
      )}
    </>
  );
}

function callsOf(row: Shown): readonly Call[] {
  if (row.kind === "call" || row.kind === "note") return [row.call];
  return row.kind === "reads" || row.kind === "refusals" ? row.calls : [];
}

function labelOf(row: Shown): string {
  switch (row.kind) {
    case "top":
      return "The beginning of what is shown";
    case "day":
      return row.day;
    case "reads":
      return `Read ${row.calls.length} files and folders`;
    case "refusals":
      return shownName(refusalWords(row.calls));
    case "note":
      return shownName(row.call.note ?? "");
    case "call":
      return `${shownName(sentenceOf(row.call))}, ${standing(row.call)}, ${timeOfDay(row.call.at)}`;
  }
}
