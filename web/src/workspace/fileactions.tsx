/** What can be done with one file or folder: download, rename, delete, copy its path or its address. */
import { signal, useSignal } from "@preact/signals";
import { writeClipboard } from "../common/clipboard";
import type { RenamedFile } from "../common/files.generated";
import { shownName } from "../common/format";
import { request } from "../common/http";
import { type Addresses, seen } from "../common/page";
import type { Action } from "../ui/menu";
import { Dialog } from "../ui/parts";
import { toast } from "../ui/toast";
import type { Root } from "./files";

const LIMIT_MS = 90_000;
const FOLDERS: Record<Root, string> = {
  outputs: "/mnt/user-data/outputs",
  uploads: "/mnt/user-data/uploads",
  workspace: "/home/assistant",
};

export interface Target {
  path: string;
  root: Root;
  folder: boolean;
}

/** Which question is open. */
const asks = signal<{ kind: "rename" | "delete"; target: Target } | null>(null);

/** The path below its root. */
export function below({ path, root }: Target): string {
  return path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path;
}

/** Where programs of the sandbox find it. */
export const sandboxPath = (target: Target): string => `${FOLDERS[target.root]}/${below(target)}`;

/** The root of a path as the service has it: outputs unless it names another. */
export function rootOf(path: string): Root {
  const first = path.split("/", 1)[0];
  return first === "uploads" || first === "workspace" ? first : "outputs";
}

const copy = (text: string, words: string) =>
  void writeClipboard(text).then(
    () => toast(words),
    () => toast("This browser refused to copy."),
  );

export function actionsOf(target: Target, addresses: Addresses): Action[] {
  const { path, folder } = target;
  return [
    ...(folder
      ? []
      : [{ title: "Download", icon: "download" as const, href: addresses.download(path), download: true }]),
    { title: "Copy path", icon: "copy", run: () => copy(sandboxPath(target), "The path was copied.") },
    {
      title: "Copy link",
      icon: "open",
      run: () =>
        copy(
          seen(addresses.preview(path), false),
          "The address was copied. It opens for those who may see this chat.",
        ),
    },
    ...(addresses.viewOnly
      ? []
      : ([
          {
            title: "Rename",
            icon: "edit",
            run: () => {
              asks.value = { kind: "rename", target };
            },
          },
          {
            title: "Delete",
            icon: "trash",
            danger: true,
            run: () => {
              asks.value = { kind: "delete", target };
            },
          },
        ] satisfies Action[])),
  ];
}

function Rename(props: {
  target: Target;
  addresses: Addresses;
  onDone: (path: string) => void;
  onClose: () => void;
}) {
  const { target, addresses } = props;
  const name = target.path.slice(target.path.lastIndexOf("/") + 1);
  const text = useSignal(shownName(name));
  const problem = useSignal("");
  const busy = useSignal(false);
  const save = async () => {
    const next = text.value.trim();
    if (!next || next === shownName(name) || busy.value) return props.onClose();
    busy.value = true;
    problem.value = "";
    const to = `${target.root}/${below(target).slice(0, below(target).length - name.length)}${next}`;
    try {
      const answer = await request(addresses.rename(target.path, to), { method: "POST" }, LIMIT_MS);
      const { path } = (await answer.json()) as RenamedFile;
      props.onDone(path);
    } catch (error) {
      problem.value = error instanceof Error ? error.message : "It could not be renamed.";
    }
    busy.value = false;
  };
  return (
    <Dialog title={`Rename ${shownName(name)}`} onClose={props.onClose}>
      <input
        autoFocus
        aria-label="New name"
        spellcheck={false}
        value={text.value}
        onFocus={(event) => {
          const dot = event.currentTarget.value.lastIndexOf(".");
          event.currentTarget.setSelectionRange(0, dot > 0 ? dot : event.currentTarget.value.length);
        }}
        onInput={(event) => {
          text.value = event.currentTarget.value;
        }}
        onKeyDown={(event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          void save();
        }}
      />
      {problem.value && (
        <p class="bad" role="alert">
          {problem.value}
        </p>
      )}
      <div class="row">
        <button type="button" class="primary" disabled={busy.value} onClick={() => void save()}>
          Rename
        </button>
        <button type="button" onClick={props.onClose}>
          Cancel
        </button>
      </div>
    </Dialog>
  );
}

function Delete(props: { target: Target; addresses: Addresses; onDone: () => void; onClose: () => void }) {
  const { target, addresses } = props;
  const problem = useSignal("");
  const busy = useSignal(false);
  const name = shownName(target.path.slice(target.path.lastIndexOf("/") + 1));
  const remove = async () => {
    busy.value = true;
    problem.value = "";
    try {
      await request(addresses.remove(target.path, target.folder), { method: "DELETE" }, LIMIT_MS);
      toast(`${name} was deleted.`);
      props.onDone();
    } catch (error) {
      problem.value = error instanceof Error ? error.message : "It could not be deleted.";
    }
    busy.value = false;
  };
  return (
    <Dialog title={`Delete ${name}?`} onClose={props.onClose}>
      <p>{target.folder ? "The folder and all that is in it go for good." : "The file goes for good."}</p>
      {problem.value && (
        <p class="bad" role="alert">
          {problem.value}
        </p>
      )}
      <div class="row">
        <button type="button" class="danger" disabled={busy.value} onClick={() => void remove()}>
          Delete
        </button>
        <button type="button" autoFocus onClick={props.onClose}>
          Keep it
        </button>
      </div>
    </Dialog>
  );
}

/** The question that is open, if any. `onGone` and `onRenamed` are told of what was done. */
export function FileQuestions(props: {
  addresses: Addresses;
  onRenamed: (from: string, to: string) => void;
  onGone: (path: string) => void;
}) {
  const ask = asks.value;
  if (!ask) return null;
  const close = () => {
    asks.value = null;
  };
  const shared = { target: ask.target, addresses: props.addresses, onClose: close };
  return ask.kind === "rename" ? (
    <Rename
      {...shared}
      onDone={(to) => {
        close();
        props.onRenamed(ask.target.path, to);
      }}
    />
  ) : (
    <Delete
      {...shared}
      onDone={() => {
        close();
        props.onGone(ask.target.path);
      }}
    />
  );
}
