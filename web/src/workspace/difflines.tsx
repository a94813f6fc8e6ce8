/** The difference of two texts: the lines that came and went, with some around them. */
import { type DiffLine, hunksOf } from "../common/diff";
import { shownName } from "../common/format";

const CLASSES = { "+": "added", "-": "removed", " ": "", "…": "gap" } as const;

export function DiffLines(props: { lines: readonly DiffLine[]; label: string; most: number }) {
  const shown = hunksOf(props.lines);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <pre class="diff" role="group" tabIndex={0} aria-label={props.label}>
      {shown.slice(0, props.most).map((line, i) => (
        <span key={i} class={CLASSES[line.sign]}>
          {`${line.sign} ${shownName(line.text.replace(/\r$/, ""))}\n`}
        </span>
      ))}
      {shown.length > props.most && <span class="gap">… more than is shown here</span>}
    </pre>
  );
}
