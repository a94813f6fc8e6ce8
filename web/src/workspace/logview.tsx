/** The end of a text file, and what is added to it while somebody looks. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { TailPiece } from "../common/files.generated";
import { bytes, forPeople, plainText } from "../common/format";
import type { Addresses } from "../common/page";
import { useFollow } from "./scrolling";

/** Characters that are kept: a log may grow for days. */
const MOST = 1_000_000;

export interface Log {
  text: string;
  size: number;
  /** Some of the file comes before what is shown. */
  cut: boolean;
}

export function withPiece(log: Log, piece: TailPiece): Log {
  const whole = (piece.reset ? "" : log.text) + piece.text;
  // A cut at a line's end: half a line says something else.
  const text = whole.length > MOST ? whole.slice(whole.indexOf("\n", whole.length - MOST) + 1) : whole;
  const cut = (piece.reset ? piece.start > 0 : log.cut) || text.length < whole.length;
  return { text, size: piece.size, cut };
}

function pieceOf(data: string): TailPiece | null {
  try {
    const value = JSON.parse(data) as TailPiece | null;
    return value && typeof value.text === "string" ? value : null;
  } catch {
    return null;
  }
}

export function LogView({ addresses, path }: { addresses: Addresses; path: string }) {
  const log = useSignal<Log>({ text: "", size: 0, cut: false });
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
        <button type="button" aria-pressed={state.value !== "paused"} onClick={again}>
          Follow
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
              ? "Not followed."
              : `${bytes(log.value.size)}${log.value.cut ? ", the end of it" : ""}`)}
        </span>
      </div>
      <pre
        ref={ref}
        class={wrap.value ? "wrap" : ""}
        role="log"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        tabIndex={0}
        aria-label="End of the file"
        aria-live="off"
        onScroll={onScroll}
      >
        {plainText(log.value.text)}
      </pre>
    </div>
  );
}
