/** What a call changed in a file, line by line. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { FileSides } from "../common/api.generated";
import { bytes } from "../common/format";
import { getJson } from "../common/http";
import type { Addresses } from "../common/page";
import { type Call, editOf, fileOf } from "../workspace/calls";
import { shown } from "./code";
import { type Change, type DiffRow, diffRows, lineDiff } from "./linediff";
import { work } from "./work";

/** Rows that are shown at first, and that a click adds. */
const FIRST = 400;
const MORE = 5_000;
const CHUNK = 60;
/** Texts up to this length are compared at once: it takes a millisecond. */
const AT_ONCE = 4_000;
const AT_ONCE_MS = 5;

const count = (value: number) => value.toLocaleString("en");

/** Null while it is not known, or where there are no texts to compare. */
export function useChange(call: Call): Change | null {
  const edit = useMemo(() => editOf(call), [call.files, call.arguments]);
  const quick = useMemo(
    () =>
      edit && edit.before.length + edit.after.length <= AT_ONCE
        ? lineDiff(edit.before, edit.after, AT_ONCE_MS)
        : null,
    [edit],
  );
  const [made, make] = useState<{ edit: typeof edit; change: Change | null } | null>(null);
  useEffect(() => {
    if (!edit || quick) return;
    let wanted = true;
    const key = `${call.id} ${edit.before.length} ${edit.after.length}`;
    void work.diff(key, edit.before, edit.after).then((change) => {
      // Where no worker runs, a short comparison is made here.
      if (wanted) make({ edit, change: change ?? lineDiff(edit.before, edit.after, 50) });
    });
    return () => {
      wanted = false;
    };
  }, [edit, quick, call.id]);
  return quick ?? (made?.edit === edit ? made.change : null);
}

/** "+2 −1". */
export function Counts({ call, change }: { call: Call; change: Change }) {
  const part = isPartial(call) || isCut(call);
  const words = `${part ? "At least " : ""}${count(change.added)} lines added, ${count(change.removed)} removed`;
  return (
    <span class="counts" title={words}>
      <span class="visually-hidden">{words}</span>
      {(change.added > 0 || !change.removed) && (
        <span class="added" aria-hidden="true">{`+${count(change.added)} `}</span>
      )}
      {change.removed > 0 && <span class="removed" aria-hidden="true">{`−${count(change.removed)}`}</span>}
      {part && " …"}
    </span>
  );
}

const CLASSES = { "+": "added", "-": "removed", " ": "", "…": "place" };

function Chunks({ rows }: { rows: readonly DiffRow[] }) {
  const chunks = [];
  for (let at = 0; at < rows.length; at += CHUNK) {
    const some = rows.slice(at, at + CHUNK);
    chunks.push(
      <div key={at} class="rows" style={{ containIntrinsicSize: `auto ${some.length * 19}px` }}>
        {some.map((row, i) => (
          <span key={i} class={`row ${CLASSES[row.sign]}`}>{`${row.sign} ${shown(row.text)}\n`}</span>
        ))}
      </div>,
    );
  }
  return <>{chunks}</>;
}

/** Larger files are compared by size only. */
const MOST_COMPARED = 8 * 1024 * 1024;

/** Whether the page has less than the whole change, and the service may have all of it. */
function isPartial(call: Call): boolean {
  const file = fileOf(call);
  if (!file?.kept || call.state !== "done" || file.before === null) return false;
  const known = file.text_before !== null && file.text_after !== null;
  const small = Math.max(file.size_before, file.size_after) <= MOST_COMPARED;
  return small && (!known || file.cut_before > 0 || file.cut_after > 0);
}

/** A long argument is told in part. */
const isCut = (call: Call): boolean =>
  fileOf(call)?.text_after === null && /… \([\d,]+ more characters\)$/.test(editOf(call)?.after ?? "");

const CHANGED = "The file has changed since, so this change cannot be compared whole any more.";

/** The hashes tell which side is which: the change may have been undone meanwhile. */
async function wholeChange(call: Call, addresses: Addresses): Promise<Change> {
  const file = fileOf(call);
  const { sides } = await getJson<FileSides>(addresses.change(call.id));
  const before = sides.find((side) => side.hash === file?.before);
  const after = sides.find((side) => side.hash === file?.after);
  if (!before || !after) throw new Error(CHANGED);
  if (before.text === null || after.text === null) throw new Error("This file is no text.");
  const change = await work.diff(`${call.id} whole`, before.text, after.text);
  if (!change) throw new Error("The comparison took too long.");
  return change;
}

function WholeButton(props: { call: Call; addresses: Addresses; onChange: (change: Change) => void }) {
  const [said, say] = useState("");
  const compare = () => {
    say("Comparing…");
    wholeChange(props.call, props.addresses).then(props.onChange, (error: unknown) =>
      say(error instanceof Error ? error.message : "It did not work."),
    );
  };
  return (
    <div class="put-back">
      <button type="button" onClick={compare}>
        Compare the whole files
      </button>
      <span class="call-note" role="status">
        {said}
      </span>
    </div>
  );
}

export function Diff(props: { call: Call; change: Change | null; addresses: Addresses }) {
  const { call } = props;
  const edit = editOf(call);
  const file = fileOf(call);
  const [most, show] = useState(FIRST);
  const [all, showAll] = useState<Change | null>(null);
  const change = all ?? props.change;
  const rows = useMemo(() => (change ? diffRows(change) : []), [change]);
  const partial = all === null && isPartial(call);
  const more = partial && <WholeButton call={call} addresses={props.addresses} onChange={showAll} />;
  if (!edit && !all)
    return file ? (
      <>
        <p class="call-note muted">{sizes(call)}</p>
        {more}
      </>
    ) : null;
  if (!change)
    return (
      <p class="call-note muted" role="status">
        Comparing…
      </p>
    );
  const cut = all ? 0 : Math.max(file?.cut_before ?? 0, file?.cut_after ?? 0);
  const line = all ? 1 : (edit?.line ?? 1);
  const hidden = rows.length - most;
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <pre class="diff" role="group" tabIndex={0} aria-label="The change">
        {line > 1 && <span class="row place">{`@@ line ${count(line)} @@\n`}</span>}
        <Chunks rows={rows.slice(0, most)} />
        {cut > 0 && hidden <= 0 && <span class="row place">{`… ${count(cut)} more characters\n`}</span>}
      </pre>
      {hidden > 0 && (
        <button type="button" onClick={() => show(most + MORE)}>
          {`Show ${count(Math.min(hidden, MORE))} more of ${count(hidden)} lines`}
        </button>
      )}
      {more}
    </>
  );
}

/** A file that cannot be shown line by line: what it weighed. */
function sizes(call: Call): string {
  const file = fileOf(call);
  if (!file) return "";
  const now = bytes(file.size_after);
  return file.before === null ? `A new file of ${now}.` : `${bytes(file.size_before)} before, ${now} now.`;
}
