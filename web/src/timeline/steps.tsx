/** What happened, step by step, and the one step that is looked at. */
import { useEffect, useRef } from "preact/hooks";
import { plainText, seconds, shownName } from "../common/format";
import { Icon, type IconName } from "../ui/icon";
import { clock, type Row, type TimelineModel } from "./model";

/** Rows that are in the page at once, around the current one. */
const AROUND = 60;

const ICONS: Record<string, IconName> = {
  bash_tool: "terminal",
  create_file: "plus",
  str_replace: "edit",
  view: "eye",
  sub_agent: "agents",
};
const OTHERS: Record<string, IconName> = {
  upload: "upload",
  edit: "edit",
  takeover: "keyboard",
  handback: "keyboard",
  egress: "lock",
  lifecycle: "server",
  agent: "agents",
};

const iconOf = (row: Row): IconName =>
  row.kind === "call" ? (ICONS[row.tool] ?? "activity") : (OTHERS[row.kind] ?? "history");

/** For people it is a computer. */
export const wordsOf = (row: Row): string =>
  shownName(row.title || row.tool).replace(row.kind === "lifecycle" ? /^Sandbox\b/ : /^$/, "Computer");

/** How a call stands at a time; nothing for one that went well. */
export function stateAt(row: Row, at: number): { tone: string; words: string } | null {
  if (row.kind !== "call") return null;
  if (!row.end || row.end.at > at) return row.at > at ? null : { tone: "accent", words: "running" };
  if (!row.end.error) return null;
  return { tone: "bad", words: row.end.code === null ? "failed" : `exit ${row.end.code}` };
}

export function Detail({ row, at }: { row: Row; at: number }) {
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

/** `detailed`: the current step is not shown elsewhere. */
export function Steps(props: {
  model: TimelineModel;
  place: number;
  round: number;
  detailed: boolean;
  onGo: (place: number) => void;
}) {
  const { model } = props;
  const moment = model.moments[props.place];
  const at = moment?.at ?? 0;
  const current = moment?.row ?? -1;
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [current, props.round]);
  const from = Math.max(0, current - AROUND);
  const shown = model.rows.slice(from, current + AROUND);
  return (
    <ol class="steps" ref={list} start={from + 1} aria-label="What happened">
      {shown.map((row, i) => {
        const place = from + i;
        const state = stateAt(row, at);
        const open = place === current;
        return (
          <li key={row.n} class={row.at > at ? "future" : ""}>
            <button
              type="button"
              class="plain step"
              aria-current={open ? "step" : undefined}
              onClick={() => props.onGo(model.momentOf(place))}
            >
              <Icon name={iconOf(row)} class={state?.tone ?? ""} />
              <span class="cut grow">{wordsOf(row)}</span>
              {state && <span class={`chip ${state.tone}`}>{state.words}</span>}
              <span class="muted when">
                {row.end && row.end.at <= at && row.end.seconds >= 0.05
                  ? seconds(row.end.seconds)
                  : clock(row.at)}
              </span>
            </button>
            {open && props.detailed && row.kind === "call" && <Detail row={row} at={at} />}
          </li>
        );
      })}
    </ol>
  );
}
