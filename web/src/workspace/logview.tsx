/** The end of a text file, and what is added to it while somebody looks. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import "../activity/activity.css";
import { CutMark, Rows } from "../activity/output";
import type { TextRow } from "../activity/printed";
import type { TailPiece } from "../common/files.generated";
import { bytes, forPeople } from "../common/format";
import type { Addresses } from "../common/page";
import { EMPTY, type Log, rowOf, withPiece } from "./logtext";
import { useFollow } from "./scrolling";

function pieceOf(data: string): TailPiece | null {
  try {
    const value = JSON.parse(data) as TailPiece | null;
    return value && typeof value.text === "string" ? value : null;
  } catch {
    return null;
  }
}

const isPlain = ([only, more]: TextRow) => !!only && !more && Object.keys(only).length === 1;

/** Drawn once: a block that is full does not change any more. Most have no colours, and are one text. */
function Lines({ rows }: { rows: readonly TextRow[] }) {
  return useMemo(
    () =>
      rows.every(isPlain) ? (
        <div class="rows" style={{ containIntrinsicSize: `auto ${rows.length * 19}px` }}>
          {rows.map(([only]) => `${only?.text ?? ""}\n`).join("")}
        </div>
      ) : (
        <Rows rows={rows} />
      ),
    [rows],
  );
}

export function LogView({ addresses, path }: { addresses: Addresses; path: string }) {
  const log = useSignal<Log>(EMPTY);
  const state = useSignal<"waiting" | "following" | "paused">("waiting");
  const why = useSignal("");
  const wrap = useSignal(true);
  const turn = useSignal(0);
  const { ref, onScroll } = useFollow<HTMLPreElement>(log.value);
  useEffect(() => {
    if (state.peek() === "paused") return;
    const source = new EventSource(addresses.tail(path));
    source.onmessage = (message: MessageEvent<string>) => {
      const piece = pieceOf(message.data);
      if (!piece) return;
      if (piece.stopped) {
        why.value = forPeople(piece.stopped);
        state.value = "paused";
        source.close();
        return;
      }
      state.value = "following";
      why.value = "";
      log.value = withPiece(log.peek(), piece);
    };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      why.value = "The file cannot be followed now.";
      state.value = "paused";
    };
    return () => source.close();
  }, [addresses, path, turn.value]);
  const again = () => {
    state.value = state.value === "paused" ? "waiting" : "paused";
    why.value = "";
    turn.value += 1;
  };
  return (
    <div class="log-view">
      <div class="page-bar">
        <button type="button" onClick={again}>
          {state.value === "paused" ? "Go on" : "Pause"}
        </button>
        <button
          type="button"
          aria-pressed={wrap.value}
          onClick={() => {
            wrap.value = !wrap.value;
          }}
        >
          Wrap lines
        </button>
        <span class="grow muted" role="status">
          {why.value ||
            (state.value === "paused"
              ? "Paused."
              : `${bytes(log.value.size)}${log.value.cut ? ", the end of it" : ""}`)}
        </span>
      </div>
      <pre
        ref={ref}
        class={`output ${wrap.value ? "wrap" : ""}`}
        role="log"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        tabIndex={0}
        aria-label="End of the file"
        aria-live="off"
        onScroll={onScroll}
      >
        {log.value.cut && <CutMark>Earlier lines are left out here</CutMark>}
        {log.value.blocks.map((block) => (
          <Lines key={block.first} rows={block.rows} />
        ))}
        {log.value.rest && <Rows rows={[rowOf(log.value.rest, log.value.pen).row]} />}
      </pre>
    </div>
  );
}
