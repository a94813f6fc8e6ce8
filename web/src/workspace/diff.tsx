/** What a call changed in a file, line by line. */
import { diffOf } from "../common/diff";
import { bytes, shownName } from "../common/format";
import { type Call, editOf, fileOf } from "./calls";

/** Lines of a change that are shown here; the file has the rest. */
const MOST_LINES = 400;

const count = (value: number) => value.toLocaleString("en");

export function Diff({ call }: { call: Call }) {
  const edit = editOf(call);
  const file = fileOf(call);
  if (!edit) return file ? <p class="call-note muted">{sizes(call)}</p> : null;
  const all = diffOf(edit.before, edit.after);
  const cut = Math.max(file?.cut_before ?? 0, file?.cut_after ?? 0);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <pre class="diff" role="group" tabIndex={0} aria-label="The change">
      {edit.line > 1 && <span class="place">{`@@ line ${count(edit.line)} @@\n`}</span>}
      {all.slice(0, MOST_LINES).map((line, i) => (
        <span key={i} class={line.sign === "+" ? "added" : line.sign === "-" ? "removed" : ""}>
          {`${line.sign} ${shownName(line.text)}\n`}
        </span>
      ))}
      {all.length > MOST_LINES && `… ${count(all.length - MOST_LINES)} more lines\n`}
      {cut > 0 && `… ${count(cut)} more characters\n`}
    </pre>
  );
}

/** A file that cannot be shown line by line: what it weighed. */
function sizes(call: Call): string {
  const file = fileOf(call);
  if (!file) return "";
  const now = bytes(file.size_after);
  return file.before === null ? `A new file of ${now}.` : `${bytes(file.size_before)} before, ${now} now.`;
}
