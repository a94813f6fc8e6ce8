/** The files panel: the tree, what is being uploaded, and the file that is open. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { bytes, moment, shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { IconButton } from "../ui/parts";
import { type Awake, DownNotice } from "./awake";
import { type Entry, type EntryKind, type Files, ROOTS, type Root } from "./files";
import type { Upload, Uploads } from "./uploads";

const ROOT_WORDS: Record<Root, { title: string; empty: string }> = {
  outputs: { title: "Outputs", empty: "Nothing made yet." },
  uploads: { title: "Uploads", empty: "Drop files here to give them to the model." },
  workspace: { title: "Workspace", empty: "The home folder is empty." },
};

/** What stands in the place of a size. */
const KIND_WORDS: Record<EntryKind, string> = {
  file: "",
  directory: "folder",
  symlink: "link",
  other: "special",
};

interface RowProps {
  files: Files;
  entry: Entry;
  level: number;
  open: string;
  onOpen: (path: string) => void;
}

function Row(props: RowProps) {
  const { files, entry, level } = props;
  const folder = files.isFolder(entry);
  const special = entry.kind === "other";
  const what = KIND_WORDS[entry.kind] || bytes(entry.size);
  const expanded = folder && files.isOpen(entry);
  const below = expanded ? files.below(entry) : undefined;
  const name = shownName(entry.name);
  return (
    <>
      <button
        type="button"
        role="treeitem"
        aria-level={level}
        aria-expanded={folder ? expanded : undefined}
        aria-selected={!folder && entry.path === props.open}
        aria-disabled={special || undefined}
        class="tree-row plain"
        style={{ "padding-inline-start": `${8 + (level - 1) * 14}px` }}
        title={`${name} · ${special ? "a pipe, socket or device: nothing to show" : what} · ${moment(entry.modified)?.toLocaleString() ?? ""}`}
        onClick={() => {
          if (folder) files.toggle(entry);
          else if (!special) props.onOpen(entry.path);
        }}
      >
        <Icon name={folder ? "chevron" : "file"} class={expanded ? "turned" : ""} />
        <span class="cut grow">{name}</span>
        {entry.changed && <span class="badge">changed</span>}
        {entry.kind !== "directory" && <span class="muted size">{what}</span>}
      </button>
      {below?.map((child) => (
        <Row {...props} key={child.path} entry={child} level={level + 1} />
      ))}
      {expanded && below?.length === 0 && (
        <p
          class="muted tree-empty"
          role="presentation"
          style={{ "padding-inline-start": `${30 + level * 14}px` }}
        >
          Empty
        </p>
      )}
    </>
  );
}

/** Arrow keys move in the tree as in a list; right opens and left closes a folder. */
function onTreeKey(event: KeyboardEvent): void {
  const rows = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=treeitem]")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const row = rows[at];
  if (!row) return;
  const expanded = row.getAttribute("aria-expanded");
  if (event.key === "ArrowDown") rows[at + 1]?.focus();
  else if (event.key === "ArrowUp") rows[at - 1]?.focus();
  else if (event.key === "ArrowRight" && expanded === "false") row.click();
  else if (event.key === "ArrowLeft" && expanded === "true") row.click();
  else return;
  event.preventDefault();
}

function Branch(props: {
  title: string;
  entries: Entry[];
  empty: string;
  row: (entry: Entry) => ComponentChildren;
}) {
  if (!props.entries.length) return <p class="muted tree-empty">{props.empty}</p>;
  return (
    <div role="tree" aria-label={props.title} onKeyDown={onTreeKey}>
      {props.entries.map(props.row)}
    </div>
  );
}

const STATE_WORDS = {
  waiting: "waiting",
  sending: "",
  done: "done",
  cancelled: "cancelled",
  failed: "failed",
};

function UploadRow({ upload, uploads }: { upload: Upload; uploads: Uploads }) {
  const state = upload.state.value;
  const running = state === "sending" || state === "waiting";
  return (
    <li>
      <span class="cut grow" title={shownName(upload.name)}>
        {shownName(upload.name)}
      </span>
      <span class={state === "failed" ? "bad" : "muted"} title={upload.problem.value}>
        {state === "sending"
          ? `${Math.floor(upload.share.value * 100)} %`
          : upload.problem.value || STATE_WORDS[state]}
      </span>
      {running && (
        <IconButton icon="close" label={`Cancel ${upload.name}`} onClick={() => uploads.cancel(upload)} />
      )}
      {state === "sending" && <progress value={upload.share.value} aria-label={`Upload of ${upload.name}`} />}
    </li>
  );
}

export function Tree(props: {
  addresses: Addresses;
  files: Files;
  uploads: Uploads;
  awake: Awake;
  open: string;
  onOpen: (path: string) => void;
}) {
  const { files, uploads, awake } = props;
  const { viewOnly } = props.addresses;
  const unread = awake.down && awake.made;
  const filter = useSignal("");
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const onFocus = () => void files.refresh();
    addEventListener("focus", onFocus);
    return () => removeEventListener("focus", onFocus);
  }, [files]);
  const wanted = filter.value.trim().toLowerCase();
  const found = wanted
    ? files
        .known()
        .filter((e) => e.path.toLowerCase().includes(wanted))
        .slice(0, 200)
    : [];
  const row = (entry: Entry) => (
    <Row
      key={entry.root + entry.path}
      files={files}
      entry={entry}
      level={1}
      open={props.open}
      onOpen={props.onOpen}
    />
  );
  return (
    <section class="tree" aria-label="Files">
      <header class="bar">
        <h2 class="grow">Files</h2>
        {!viewOnly && (
          <IconButton icon="upload" label="Upload files" onClick={() => picker.current?.click()} />
        )}
        <IconButton icon="reload" label="Read the folders again" onClick={() => void files.refresh()} />
        <a
          class="button plain"
          href={props.addresses.archive()}
          download
          aria-label="Download everything as a zip"
          title="Download everything as a zip"
        >
          <Icon name="archive" />
        </a>
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            uploads.add(event.currentTarget.files ?? []);
            event.currentTarget.value = "";
          }}
        />
      </header>
      <DownNotice awake={awake} />
      <div class="tree-filter">
        <input
          type="search"
          placeholder="Filter by name"
          aria-label="Filter files by name"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
      </div>
      {files.problem.value && (
        <p class="notice bad" role="alert">
          {files.problem.value}
        </p>
      )}
      <div class="tree-rows">
        {wanted ? (
          <Branch
            title="Files found"
            entries={found}
            empty="No file that was seen has this in its name."
            row={row}
          />
        ) : (
          ROOTS.map((root) => (
            <div key={root}>
              <h3>{ROOT_WORDS[root].title}</h3>
              <Branch
                title={ROOT_WORDS[root].title}
                entries={files.top(root)}
                empty={
                  files.loading.value
                    ? "Loading…"
                    : unread
                      ? "Not read while it sleeps."
                      : viewOnly && root === "uploads"
                        ? "Nothing was uploaded."
                        : ROOT_WORDS[root].empty
                }
                row={row}
              />
            </div>
          ))
        )}
      </div>
      {uploads.all.value.length > 0 && (
        <div class="uploads">
          <div class="uploads-head">
            <h3 class="grow">Uploads under way</h3>
            <button type="button" class="plain" onClick={() => uploads.clear()}>
              Clear
            </button>
          </div>
          <ul>
            {uploads.all.value.map((upload) => (
              <UploadRow key={upload.id} upload={upload} uploads={uploads} />
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}
