/** What was changed in the files of a chat: by the journal, and what other programs wrote. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { diffOf } from "../common/diff";
import type { FileChangeRecord, FileChanges, WrittenFile } from "../common/files.generated";
import { bytes, moment, shownName } from "../common/format";
import { getJson, post } from "../common/http";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { toast } from "../ui/toast";
import { DiffLines } from "./difflines";
import { iconOf } from "./fileicons";

const HOUR = 3600;
const SPANS = [
  { words: "last hour", seconds: HOUR },
  { words: "last day", seconds: 24 * HOUR },
  { words: "all that is kept", seconds: 0 },
];
const WORDS: Record<FileChangeRecord["done"], string> = {
  created: "Made",
  changed: "Changed",
  uploaded: "Uploaded",
  renamed: "Renamed",
  deleted: "Deleted",
};
const MOST_LINES = 200;
const UNDO_MS = 90_000;

/** Lines that came and went, for a change whose texts are known. */
export function counted(change: FileChangeRecord): { added: number; removed: number } | null {
  const { text_before: before, text_after: after } = change;
  if (before === null || after === null) return null;
  const lines = diffOf(before, after);
  const of = (sign: string) => lines.filter((line) => line.sign === sign).length;
  return { added: of("+"), removed: of("-") };
}

/** Files that no entry of the journal names: a command wrote them. */
export function byPrograms(found: FileChanges): WrittenFile[] {
  const known = new Set(found.changes.map((change) => change.shown));
  return (found.files ?? []).filter((file) => !known.has(file.path));
}

const time = (at: number) => moment(at)?.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) ?? "";

function Change(props: {
  change: FileChangeRecord;
  addresses: Addresses;
  onOpen: (path: string) => void;
  onUndone: () => void;
}) {
  const { change } = props;
  const open = useSignal(false);
  const undo = async () => {
    try {
      await post(props.addresses.undo(change.id, change.undone), UNDO_MS);
      props.onUndone();
    } catch (error) {
      toast(error instanceof Error ? error.message : "It did not work.");
    }
  };
  const { text_before: before, text_after: after } = change;
  const hasTexts = before !== null && after !== null;
  const lines = useMemo(() => counted(change), [before, after]);
  const name = shownName(change.path.slice(change.path.lastIndexOf("/") + 1));
  return (
    <li>
      <div class="row">
        <Icon name={iconOf(change.path)} />
        <span>
          {`${change.undone ? "Undone: " : ""}${WORDS[change.done]} `}
          {change.shown && change.done !== "deleted" ? (
            <button
              type="button"
              class="plain linked"
              title={shownName(change.path)}
              onClick={() => props.onOpen(change.shown)}
            >
              {name}
            </button>
          ) : (
            <span title={shownName(change.path)}>{name}</span>
          )}
          {change.to && ` to ${shownName(change.to.slice(change.to.lastIndexOf("/") + 1))}`}
        </span>
        <span class="about muted">
          {lines ? (
            <span class="counts">
              <span class="added">{`+${lines.added}`}</span>{" "}
              <span class="removed">{`−${lines.removed}`}</span>
            </span>
          ) : (
            change.size_after > 0 && bytes(change.size_after)
          )}
          {`${lines || change.size_after > 0 ? " · " : ""}${change.by === "person" ? "a person" : "the model"} · ${time(change.at)}`}
        </span>
        <span class="does">
          {hasTexts && (
            <button
              type="button"
              class="plain"
              aria-expanded={open.value}
              aria-label={`Difference of ${name}`}
              onClick={() => {
                open.value = !open.value;
              }}
            >
              Diff
            </button>
          )}
          {change.kept && !props.addresses.viewOnly && (
            <button
              type="button"
              class="plain"
              aria-label={`${change.undone ? "Redo" : "Undo"} the change of ${name}`}
              onClick={() => void undo()}
            >
              {change.undone ? "Redo" : "Undo"}
            </button>
          )}
        </span>
      </div>
      {open.value && hasTexts && (
        <DiffLines lines={diffOf(before, after)} label={`The change of ${name}`} most={MOST_LINES} />
      )}
    </li>
  );
}

export function Changes(props: { addresses: Addresses; round: number; onOpen: (path: string) => void }) {
  const { addresses } = props;
  const span = useSignal(SPANS[1]?.seconds ?? 0);
  const found = useSignal<FileChanges | null>(null);
  const problem = useSignal("");
  const again = useSignal(0);
  useEffect(() => {
    const stop = new AbortController();
    const since = span.value ? Date.now() / 1000 - span.value : 0;
    getJson<FileChanges>(addresses.changes(since), stop.signal).then(
      (changes) => {
        found.value = changes;
        problem.value = "";
      },
      (error: unknown) => {
        if (!stop.signal.aborted)
          problem.value = error instanceof Error ? error.message : "They could not be read.";
      },
    );
    return () => stop.abort();
  }, [addresses, span.value, props.round, again.value]);
  const programs = found.value ? byPrograms(found.value) : [];
  return (
    <div class="changes">
      <div class="tree-filter">
        <label>
          Since{" "}
          <select
            value={span.value}
            onChange={(event) => {
              span.value = Number(event.currentTarget.value);
            }}
          >
            {SPANS.map((one) => (
              <option key={one.seconds} value={one.seconds}>
                {one.words}
              </option>
            ))}
          </select>
        </label>
      </div>
      {problem.value && (
        <p class="notice bad" role="alert">
          {problem.value}
        </p>
      )}
      <div class="tree-rows">
        <h3>By the model and by people</h3>
        {found.value?.changes.length === 0 && <p class="muted tree-empty">Nothing in this time.</p>}
        <ul>
          {found.value?.changes.map((change) => (
            <Change
              key={`${change.id} ${change.path} ${change.at}`}
              change={change}
              addresses={addresses}
              onOpen={props.onOpen}
              onUndone={() => {
                again.value += 1;
              }}
            />
          ))}
        </ul>
        <h3>Written by commands</h3>
        {found.value?.files === null && (
          <p class="muted tree-empty">Not known while the computer is stopped.</p>
        )}
        {found.value?.files !== null && found.value && !programs.length && (
          <p class="muted tree-empty">Nothing in this time.</p>
        )}
        <ul>
          {programs.map((file) => (
            <li key={file.path}>
              <button
                type="button"
                class="tree-row plain"
                title={shownName(file.path)}
                onClick={() => props.onOpen(file.path)}
              >
                <Icon name={iconOf(file.path)} />
                <span class="cut grow">{shownName(file.path)}</span>
                <span class="muted size">{bytes(file.size)}</span>
                <span class="muted size">
                  {moment(file.modified)?.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}
                </span>
              </button>
            </li>
          ))}
        </ul>
        {found.value && !found.value.complete && <p class="muted tree-empty">There are more than these.</p>}
      </div>
    </div>
  );
}
