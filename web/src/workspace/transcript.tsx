/** What was said in a saved session of a coding agent, page by page. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { TranscriptEntry, TranscriptRecord } from "../common/api.generated";
import { moment, shownName } from "../common/format";
import { getJson } from "../common/http";
import type { Addresses } from "../common/page";
import { Dialog } from "../ui/parts";

const lines = (text: string) => text.split("\n").map(shownName).join("\n");

export function TranscriptDialog(props: {
  addresses: Addresses;
  id: string;
  title: string;
  onClose: () => void;
}) {
  const entries = useSignal<TranscriptEntry[]>([]);
  const next = useSignal<number | null>(0);
  const problem = useSignal("");
  const busy = useSignal(false);
  const more = async () => {
    if (busy.value || next.value === null) return;
    busy.value = true;
    problem.value = "";
    try {
      const at = props.addresses.terminal(`sessions/${encodeURIComponent(props.id)}?after=${next.value}`);
      const page = await getJson<TranscriptRecord>(at);
      entries.value = [...entries.value, ...page.entries];
      next.value = page.next;
    } catch (error) {
      problem.value = error instanceof Error ? error.message : "The session could not be read.";
    }
    busy.value = false;
  };
  useEffect(() => void more(), [props.id]);
  return (
    <Dialog title={shownName(props.title)} onClose={props.onClose}>
      <ol class="transcript" aria-label="What was said">
        {entries.value.map((entry, i) => (
          <li key={`${i} ${entry.at ?? ""}`} class={entry.role}>
            <p class="muted">
              {entry.role} · {moment(entry.at)?.toLocaleString() ?? ""}
            </p>
            {entry.parts.map((part, k) => (
              <pre key={`${k} ${part.kind}`} class={part.kind}>
                {part.kind === "text" ? "" : `[${part.kind}] `}
                {lines(part.text)}
                {part.cut ? "\n…" : ""}
              </pre>
            ))}
          </li>
        ))}
      </ol>
      {problem.value && (
        <p class="notice bad" role="alert">
          {problem.value}
        </p>
      )}
      {!entries.value.length && !problem.value && (
        <p class="muted">{busy.value ? "Loading…" : "Nothing was said."}</p>
      )}
      <div class="actions">
        {next.value !== null && (entries.value.length > 0 || problem.value) && (
          <button type="button" disabled={busy.value} onClick={() => void more()}>
            {problem.value ? "Try again" : "Show more"}
          </button>
        )}
        <button type="button" autoFocus onClick={props.onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
