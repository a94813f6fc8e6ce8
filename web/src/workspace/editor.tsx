/** A text file that a person changes. It is saved only over the version that was opened. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { diffOf } from "../common/diff";
import type { SavedFile } from "../common/files.generated";
import { HttpError, request } from "../common/http";
import type { Addresses } from "../common/page";
import { Dialog, Empty } from "../ui/parts";
import { toast } from "../ui/toast";
import type { Show } from "../viewer/messages";
import { DiffLines } from "./difflines";
import { drafts } from "./drafts";
import { type EditorPort, ViewerFrame } from "./frame";

const MOST = 4 * 1024 * 1024;
const LIMIT_MS = 90_000;
const MOST_COMPARED = 400_000;
const MOST_LINES = 400;

const guard = (event: BeforeUnloadEvent) => {
  if (drafts.size) event.preventDefault();
};

/** Bytes that are no UTF-8 would be lost by saving them. */
export function isEditable(bytes: ArrayBuffer): boolean {
  const data = new Uint8Array(bytes);
  if (data.includes(0)) return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(data);
    return true;
  } catch {
    return false;
  }
}

async function read(url: string): Promise<{ bytes: ArrayBuffer; etag: string }> {
  const response = await request(url, { cache: "no-store" }, LIMIT_MS);
  const size = Number(response.headers.get("content-length") ?? 0);
  if (size > MOST) {
    await response.body?.cancel();
    throw new HttpError(413, "This file is too large to be edited here.");
  }
  return { bytes: await response.arrayBuffer(), etag: response.headers.get("etag") ?? "" };
}

/** What the text would change in the file as it is now. */
function Compared({ url, read }: { url: string; read: () => Promise<string> }) {
  const lines = useSignal<ReturnType<typeof diffOf>>([]);
  useEffect(() => {
    void Promise.all([request(url, { cache: "no-store" }, LIMIT_MS).then((now) => now.text()), read()]).then(
      ([theirs, mine]) => {
        if (theirs.length + mine.length < MOST_COMPARED) lines.value = diffOf(theirs, mine);
      },
      () => undefined, // the choice does not depend on it
    );
  }, []);
  if (!lines.value.length) return null;
  return <DiffLines lines={lines.value} label="From the file as it is now to your text" most={MOST_LINES} />;
}

function Conflict(props: {
  url: string;
  read: () => Promise<string>;
  onOverwrite: () => void;
  onReload: () => void;
  onClose: () => void;
}) {
  return (
    <Dialog title="The file was changed meanwhile" onClose={props.onClose}>
      <p>
        Somebody, or a program, has changed this file after you opened it. Your text was not saved. To save it
        would change the file so:
      </p>
      <Compared url={props.url} read={props.read} />
      <div class="row">
        <button type="button" class="danger" onClick={props.onOverwrite}>
          Save mine over it
        </button>
        <button type="button" onClick={props.onReload}>
          Drop mine, show the other
        </button>
        <button type="button" autoFocus onClick={props.onClose}>
          Go on editing
        </button>
      </div>
    </Dialog>
  );
}

export function Editor(props: {
  addresses: Addresses;
  assets: string;
  path: string;
  /** The version that is in place now, as far as it is known. */
  version: string;
  onClose: () => void;
  onSaved: () => void;
}) {
  const { addresses, path } = props;
  const show = useSignal<Show | null>(null);
  const etag = useSignal("");
  const dirty = useSignal(false);
  const busy = useSignal(false);
  const conflict = useSignal(false);
  const problem = useSignal("");
  const attempt = useSignal(0);
  const name = path.slice(path.lastIndexOf("/") + 1);
  const port = useMemo<EditorPort>(
    () => ({
      read: null,
      onChanged: () => {
        dirty.value = true;
        keep();
      },
      onSave: () => void save(etag.peek()),
    }),
    [path],
  );
  let wait: ReturnType<typeof setTimeout> | undefined;
  // Counted from the first change on: who types without a pause is interrupted, too.
  const keep = () => {
    wait ??= setTimeout(() => {
      wait = undefined;
      void port.read?.().then((text) => {
        if (dirty.peek()) drafts.set(path, { text, etag: etag.peek() });
      });
    }, 300);
  };
  // The same listener each time: it stays, as the drafts do.
  useEffect(() => addEventListener("beforeunload", guard), []);
  useEffect(() => {
    let gone = false;
    const kept = drafts.get(path);
    const begin = (bytes: ArrayBuffer, of: string) => {
      etag.value = of;
      dirty.value = kept !== undefined;
      show.value = {
        type: "show",
        kind: "text",
        name,
        bytes,
        size: bytes.byteLength,
        base: null,
        edit: true,
      };
    };
    if (kept) {
      begin(new TextEncoder().encode(kept.text).buffer as ArrayBuffer, kept.etag);
      return;
    }
    read(addresses.file(path)).then(
      (file) => {
        if (gone) return;
        if (!isEditable(file.bytes))
          problem.value = "This file is no UTF-8 text, so it cannot be edited here.";
        else begin(file.bytes, file.etag);
      },
      (error: unknown) => {
        if (!gone) problem.value = error instanceof Error ? error.message : "The file could not be read.";
      },
    );
    return () => {
      gone = true;
      clearTimeout(wait);
      wait = undefined;
    };
  }, [path, attempt.value]);
  const save = async (over: string) => {
    if (busy.value || !port.read) return;
    busy.value = true;
    try {
      const text = await port.read();
      // Until the service has it, nobody else does.
      drafts.set(path, { text, etag: etag.peek() });
      dirty.value = false;
      const answer = await request(
        addresses.edit(path),
        {
          method: "PUT",
          headers: { "if-match": over, "content-type": "text/plain; charset=utf-8" },
          body: text,
        },
        LIMIT_MS,
      );
      const saved = (await answer.json()) as SavedFile;
      etag.value = saved.etag;
      const kept = drafts.get(path);
      if (kept?.text === text) drafts.delete(path);
      else if (kept) kept.etag = saved.etag;
      toast("Saved.");
      props.onSaved();
    } catch (error) {
      dirty.value = true;
      if (error instanceof HttpError && error.status === 412) conflict.value = true;
      else toast(error instanceof Error ? error.message : "It could not be saved.");
    }
    busy.value = false;
  };
  const overwrite = async () => {
    conflict.value = false;
    try {
      const { headers } = await request(addresses.file(path), { method: "HEAD", cache: "no-store" });
      await save(headers.get("etag") ?? "");
    } catch (error) {
      toast(error instanceof Error ? error.message : "It could not be saved.");
    }
  };
  const drop = () => {
    conflict.value = false;
    drafts.delete(path);
    show.value = null;
    attempt.value += 1;
  };
  const leave = () => {
    drafts.delete(path);
    props.onClose();
  };
  if (problem.value)
    return (
      <Empty icon="file" title="This file cannot be edited">
        <p>{problem.value}</p>
        <button type="button" onClick={leave}>
          Back to the file
        </button>
      </Empty>
    );
  const stale = props.version !== "" && etag.value !== "" && props.version !== etag.value && !busy.value;
  return (
    <div class="editor">
      <div class="page-bar">
        <button
          type="button"
          class="primary"
          disabled={!dirty.value || busy.value}
          onClick={() => void save(etag.value)}
        >
          {busy.value ? "Saving…" : "Save"}
        </button>
        <button type="button" onClick={leave}>
          {dirty.value ? "Discard" : "Done"}
        </button>
        <span class="grow muted" role="status">
          {stale
            ? "The file has changed on the computer since you opened it."
            : dirty.value
              ? "Not saved yet"
              : ""}
        </span>
      </div>
      <div class="file-body">
        {show.value && (
          <ViewerFrame
            assets={props.assets}
            show={show.value}
            editor={port}
            onShown={() => undefined}
            onFailed={(message) => {
              problem.value = message;
            }}
            onLink={() => undefined}
          />
        )}
      </div>
      {conflict.value && (
        <Conflict
          url={addresses.file(path)}
          read={() => port.read?.() ?? Promise.reject(new Error("no editor"))}
          onOverwrite={() => void overwrite()}
          onReload={drop}
          onClose={() => {
            conflict.value = false;
          }}
        />
      )}
    </div>
  );
}
