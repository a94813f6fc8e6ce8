/** The files panel: the tree, what is being uploaded, and the file that is open. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { bytes, moment, shortTime, shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { MenuButton } from "../ui/menu";
import { IconButton } from "../ui/parts";
import { type Awake, DownNotice } from "./awake";
import { actionsOf } from "./fileactions";
import { iconOf } from "./fileicons";
import { type Entry, type EntryKind, type Files, ROOTS, type Root } from "./files";
import type { FileSearch } from "./filesearch";
import { SearchResults } from "./searchresults";
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
  /** The row that the pointer or the keyboard is at. */
  onAt: (row: HTMLElement, entry: Entry) => void;
  /** Its menu is asked for. */
  onMenu: (row: HTMLElement, entry: Entry) => void;
  /** What is done by one key: rename, delete. */
  onAct: (title: string, entry: Entry) => void;
}

/** The keys of a file manager. */
const KEYS: Record<string, string> = { F2: "Rename", Delete: "Delete" };

function Row(props: RowProps) {
  const { files, entry, level } = props;
  const folder = files.isFolder(entry);
  const special = entry.kind === "other";
  const what = KIND_WORDS[entry.kind] || bytes(entry.size);
  const expanded = folder && files.isOpen(entry);
  const below = expanded ? files.below(entry) : undefined;
  const name = shownName(entry.name);
  const selected = !folder && entry.path === props.open;
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (selected) button.current?.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const at = (event: Event) => props.onAt(event.currentTarget as HTMLElement, entry);
  const menu = (event: Event) => {
    event.preventDefault();
    props.onMenu(event.currentTarget as HTMLElement, entry);
  };
  const act = (event: KeyboardEvent) => {
    const title = KEYS[event.key];
    if (title && !special) props.onAct(title, entry);
  };
  return (
    <>
      <button
        type="button"
        role="treeitem"
        ref={button}
        onPointerEnter={at}
        onFocus={at}
        onContextMenu={special ? undefined : menu}
        onKeyDown={act}
        aria-level={level}
        aria-expanded={folder ? expanded : undefined}
        aria-selected={selected}
        aria-disabled={special || undefined}
        class="tree-row plain"
        style={{ "padding-inline-start": `${8 + (level - 1) * 16}px` }}
        title={`${name} · ${special ? "a pipe, socket or device: nothing to show" : what} · ${moment(entry.modified)?.toLocaleString() ?? ""}`}
        onClick={() => {
          if (folder) files.toggle(entry);
          else if (!special) props.onOpen(entry.path);
        }}
      >
        {folder ? (
          <Icon name="chevron" class={expanded ? "turned" : ""} />
        ) : (
          <Icon name={iconOf(entry.name)} class={`type-${iconOf(entry.name)}`} />
        )}
        <span class="cut grow">{name}</span>
        {entry.changed && <span class="badge">changed</span>}
        {entry.kind !== "directory" && <span class="muted size">{what}</span>}
        {entry.kind === "file" && <span class="muted size when">{shortTime(entry.modified)}</span>}
      </button>
      {below?.map((child) => (
        <Row {...props} key={child.path} entry={child} level={level + 1} />
      ))}
      {expanded && below?.length === 0 && (
        <p
          class="muted tree-empty"
          role="presentation"
          style={{ "padding-inline-start": `${32 + level * 16}px` }}
        >
          Empty
        </p>
      )}
      {expanded && files.isPartial(entry) && <NotAll level={level} />}
    </>
  );
}

function NotAll({ level }: { level: number }) {
  return (
    <p
      class="muted tree-empty"
      role="presentation"
      style={{ "padding-inline-start": `${32 + level * 16}px` }}
    >
      Not everything is listed here: search for what is missing.
    </p>
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
  search: FileSearch;
  open: string;
  onOpen: (path: string, line?: number) => void;
  views: ComponentChildren;
  /** What is shown in the place of the tree. */
  instead: ComponentChildren;
}) {
  const { files, uploads, awake, search } = props;
  const { viewOnly } = props.addresses;
  const unread = awake.down && awake.made;
  const here = useSignal<{ entry: Entry; top: number } | null>(null);
  const menuOpen = useSignal(false);
  /** The row whose menu was asked for by its own key or click: the keyboard goes back there. */
  const asked = useRef<HTMLElement | null>(null);
  const rows = useRef<HTMLDivElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const onFocus = () => void files.refresh();
    addEventListener("focus", onFocus);
    return () => removeEventListener("focus", onFocus);
  }, [files]);
  const onAt = (row: HTMLElement, entry: Entry) => {
    const box = rows.current;
    if (!box || entry.kind === "other" || menuOpen.peek()) return;
    const top = row.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop;
    here.value = { entry, top };
  };
  const actions = (entry: Entry) =>
    actionsOf({ path: entry.path, root: entry.root, folder: files.isFolder(entry) }, props.addresses);
  const onMenu = (row: HTMLElement, entry: Entry) => {
    menuOpen.value = false;
    onAt(row, entry);
    asked.current = row;
    menuOpen.value = true;
  };
  const onAct = (title: string, entry: Entry) =>
    actions(entry)
      .find((action) => action.title === title)
      ?.run?.();
  const row = (entry: Entry) => (
    <Row
      key={entry.root + entry.path}
      files={files}
      entry={entry}
      level={1}
      open={props.open}
      onOpen={props.onOpen}
      onAt={onAt}
      onMenu={onMenu}
      onAct={onAct}
    />
  );
  return (
    <section class="tree" aria-label="Files">
      <header class="bar">
        <h2 class="visually-hidden">Files</h2>
        {props.views}
        <span class="grow" />
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
      {!props.instead && (
        <div class="tree-filter">
          <input
            type="search"
            placeholder="Search names and contents"
            aria-label="Search names and contents of files"
            value={search.text.value}
            onInput={(event) => search.type(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Escape") search.type("");
            }}
          />
        </div>
      )}
      {files.problem.value && (
        <p class="notice bad" role="alert">
          {files.problem.value}
        </p>
      )}
      {props.instead}
      <div class="tree-rows" ref={rows} hidden={props.instead !== null}>
        {search.active ? (
          <SearchResults
            search={search}
            onOpen={props.onOpen}
            onFolder={(path) => {
              search.type("");
              files.reveal(path);
            }}
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
                      : files.isPartial()
                        ? "Not listed."
                        : viewOnly && root === "uploads"
                          ? "Nothing was uploaded."
                          : ROOT_WORDS[root].empty
                }
                row={row}
              />
            </div>
          ))
        )}
        {!search.active && files.isPartial() && <NotAll level={0} />}
        {here.value && !search.active && (
          <div class="row-actions" style={{ top: `${here.value.top}px` }}>
            <MenuButton
              key={here.value.entry.root + here.value.entry.path}
              label={`Actions for ${shownName(here.value.entry.name)}`}
              icon="more"
              opened={menuOpen}
              back={() => {
                const row = asked.current;
                asked.current = null;
                return row;
              }}
              actions={() => {
                const entry = here.peek()?.entry;
                return entry ? actions(entry) : [];
              }}
            />
          </div>
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
