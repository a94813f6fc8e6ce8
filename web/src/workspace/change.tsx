/** What a call changed in a file, and the button that puts it back. */
import { useSignal } from "@preact/signals";
import { diffOf } from "../common/diff";
import { bytes, shownName } from "../common/format";
import { HttpError, post } from "../common/http";
import type { Addresses } from "../common/page";
import { type Call, editOf, fileOf } from "./calls";

/** Lines of a change that are shown here; the file has the rest. */
const MOST_LINES = 400;
const UNDO_MS = 90_000;

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

export function PutBack({ call, addresses }: { call: Call; addresses: Addresses }) {
  const busy = useSignal(false);
  const said = useSignal("");
  const file = fileOf(call);
  if (!file || call.state !== "done") return null;
  if (!file.kept)
    return (
      <p class="call-note muted">{`This cannot be undone: ${shownName(file.reason || "nothing was kept")}.`}</p>
    );
  const swap = async () => {
    busy.value = true;
    said.value = "";
    try {
      await post(addresses.undo(call.id, call.undone), UNDO_MS);
    } catch (error) {
      said.value = error instanceof HttpError ? error.message : "It did not work.";
    } finally {
      busy.value = false;
    }
  };
  const done =
    file.before === null ? "Undone: the file was removed." : "Undone: the file is as it was before.";
  return (
    <div class="put-back">
      <button type="button" aria-disabled={busy.value} onClick={() => !busy.value && void swap()}>
        {call.undone ? "Make the change again" : "Undo the change"}
      </button>
      <span class={`call-note ${said.value ? "bad" : ""}`} role="status">
        {busy.value ? "Working …" : said.value || (call.undone ? done : "")}
      </span>
    </div>
  );
}
