/** What a call printed: in its colours, with a mark where something is left out. */
import "./activity.css";
import type { CSSProperties } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import type { Piece } from "../workspace/calls";
import { characters } from "../workspace/calls";
import { useFollow } from "../workspace/scrolling";
import {
  type Colour,
  needsTerminal,
  paletteColour,
  plainRows,
  type Run,
  safeRows,
  type TextRow,
} from "./printed";
import { work } from "./work";

/** The browser draws what is in sight only, by so many rows at a time. */
const CHUNK = 60;

/** The first 16 colours are those of the page; of others, the lightness is one that can be read on its ground. */
function paint(run: Run): CSSProperties | undefined {
  const style: CSSProperties = {};
  const css = (colour: Colour) =>
    typeof colour === "string" ? colour : colour < 16 ? `var(--ansi-${colour})` : paletteColour(colour);
  const readable = (colour: Colour) =>
    typeof colour === "number" && colour < 16
      ? css(colour)
      : `light-dark(oklch(from ${css(colour)} min(l, 0.45) c h), oklch(from ${css(colour)} max(l, 0.78) c h))`;
  const [fg, bg] = run.inverse ? [run.bg, run.fg ?? 7] : [run.fg, run.bg];
  if (fg !== undefined) style.color = readable(fg);
  if (bg !== undefined) style.background = `color-mix(in srgb, ${css(bg)} 18%, transparent)`;
  return Object.keys(style).length ? style : undefined;
}

const classOf = (run: Run): string | undefined => {
  const names = [run.bold && "b", run.dim && "d", run.italic && "i", run.underline && "u", run.struck && "s"];
  return names.filter(Boolean).join(" ") || undefined;
};

function RowText({ row }: { row: TextRow }) {
  const [only] = row;
  if (row.length === 1 && only && Object.keys(only).length === 1) return <>{only.text}</>;
  return (
    <>
      {row.map((run, i) => (
        <span key={i} class={classOf(run)} style={paint(run)}>
          {run.text}
        </span>
      ))}
    </>
  );
}

/** Rows in chunks: those that are out of sight cost nothing to draw. The last one may grow while it is out of sight, and
 * Firefox would keep the height that it had: it is always drawn. */
export function Rows({ rows }: { rows: readonly TextRow[] }) {
  const chunks = [];
  for (let at = 0; at < rows.length; at += CHUNK) {
    const some = rows.slice(at, at + CHUNK);
    const style: CSSProperties =
      some.length < CHUNK
        ? { contentVisibility: "visible" }
        : { containIntrinsicSize: `auto ${CHUNK * 19}px` };
    chunks.push(
      <div key={at} class="rows" style={style}>
        {some.map((row, i) => (
          <span key={i} class="row">
            <RowText row={row} />
            {"\n"}
          </span>
        ))}
      </div>,
    );
  }
  return <>{chunks}</>;
}

const count = (value: number) => value.toLocaleString("en");

export function CutMark({ children }: { children: string }) {
  return <div class="cut-mark">{children}</div>;
}

/** One piece: as plain text at once, and as a terminal shows it when that is known. */
function PieceRows({ id, piece, onDrawn }: { id: string; piece: Piece; onDrawn: () => void }) {
  const { text } = piece;
  const special = useMemo(() => needsTerminal(text), [text]);
  const plain = useMemo(() => (special ? [] : plainRows(text)), [text, special]);
  const [made, make] = useState<{ text: string; rows: readonly TextRow[]; cut: boolean } | null>(null);
  useEffect(() => {
    if (!special) return;
    let wanted = true;
    void work.rows(`${id} ${piece.from} ${text.length} ${text.slice(-64)}`, text).then((found) => {
      if (!wanted) return;
      make(
        found
          ? { text, rows: safeRows(found.rows), cut: found.cut }
          : { text, rows: plainRows(text), cut: false },
      );
    });
    return () => {
      wanted = false;
    };
  }, [id, text, special]);
  useLayoutEffect(onDrawn, [made]);
  if (!special) return <Rows rows={plain} />;
  // While more is read, what was read before stays.
  if (!made) return <CutMark>Reading the output…</CutMark>;
  return (
    <>
      {made.cut && <CutMark>Earlier lines are left out here</CutMark>}
      <Rows rows={made.rows} />
    </>
  );
}

export function Output({
  id,
  pieces,
  label = "Output",
}: {
  id: string;
  pieces: readonly Piece[];
  label?: string;
}) {
  const [drawn, draw] = useState(0);
  const onDrawn = useCallback(() => draw((turn) => turn + 1), []);
  const grown = useMemo(() => ({ pieces, drawn }), [pieces, drawn]);
  const follow = useFollow<HTMLPreElement>(grown);
  let place = 0;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <pre {...follow} class="output" role="group" tabIndex={0} aria-label={label}>
      {pieces.map((piece, i) => {
        const missed = piece.from - place;
        place = piece.from + characters(piece.text);
        return (
          <div key={i}>
            {missed > 0 && <CutMark>{`${count(missed)} characters are left out here`}</CutMark>}
            <PieceRows id={`${id} ${i}`} piece={piece} onDrawn={onDrawn} />
          </div>
        );
      })}
    </pre>
  );
}
