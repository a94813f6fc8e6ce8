/** The button that puts back what a call changed in a file. */
import { useSignal } from "@preact/signals";
import { shownName } from "../common/format";
import { HttpError, post } from "../common/http";
import type { Addresses } from "../common/page";
import { type Call, fileOf } from "./calls";

const UNDO_MS = 90_000;

export function PutBack({ call, addresses }: { call: Call; addresses: Addresses }) {
  const busy = useSignal(false);
  const said = useSignal("");
  const file = fileOf(call);
  if (!file || call.state !== "done" || addresses.viewOnly) return null;
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
