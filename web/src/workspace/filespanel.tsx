/** The files panel: the tree or the changes on the left, the file that is open on the right. */
import type { Signal } from "@preact/signals";
import { lazy } from "../common/lazy";
import type { Addresses } from "../common/page";
import { Empty } from "../ui/parts";
import type { Awake } from "./awake";
import { dropDrafts, moveDrafts } from "./drafts";
import { FileQuestions } from "./fileactions";
import type { Files } from "./files";
import type { FileSearch } from "./filesearch";
import { foundLine } from "./foundline";
import { useOpened } from "./opened";
import { visitPanel } from "./place";
import { FileView } from "./show";
import { Tree } from "./tree";
import type { Uploads } from "./uploads";

const LazyChanges = lazy(async () => (await import("./changes")).Changes);

export interface FilesSpace {
  addresses: Addresses;
  assets: string;
  files: Files;
  uploads: Uploads;
  awake: Awake;
  search: FileSearch;
  page: { run: boolean };
  openPath: Signal<string>;
  filesView: Signal<"files" | "changes">;
  open: (path: string) => void;
}

function Views({ space }: { space: FilesSpace }) {
  const view = space.filesView.value;
  const choose = (next: "files" | "changes") => {
    space.filesView.value = next;
    visitPanel("files", { view: next });
  };
  return (
    <div class="views" role="group" aria-label="What is listed">
      <button type="button" aria-pressed={view === "files"} onClick={() => choose("files")}>
        Files
      </button>
      <button type="button" aria-pressed={view === "changes"} onClick={() => choose("changes")}>
        Changes
      </button>
    </div>
  );
}

export function FilesPanel({ space }: { space: FilesSpace }) {
  const path = space.openPath.value;
  const opened = useOpened(space.addresses, path, space.files);
  const shown = path !== "" && opened?.kind !== "folder";
  return (
    <div class={`files-panel ${shown ? "has-file" : ""}`}>
      <Tree
        addresses={space.addresses}
        files={space.files}
        uploads={space.uploads}
        awake={space.awake}
        search={space.search}
        open={path}
        onOpen={(chosen, line) => {
          foundLine.value = line ? { path: chosen, line } : null;
          space.open(chosen);
        }}
        views={<Views space={space} />}
        instead={
          space.filesView.value === "changes" ? (
            <LazyChanges addresses={space.addresses} round={space.files.round.value} onOpen={space.open} />
          ) : null
        }
      />
      <div class="files-open">
        {shown ? (
          <FileView
            addresses={space.addresses}
            assets={space.assets}
            run={space.page.run}
            path={path}
            opened={opened}
            awake={space.awake}
            link={space.files.isLink(path)}
            onReload={() => void space.files.refresh()}
            embed={false}
            onOpen={space.open}
            onClose={() => space.open("")}
          />
        ) : (
          <Empty icon="file" title="No file is open">
            <p>
              {space.addresses.viewOnly
                ? "Choose one on the left."
                : "Choose one on the left, or drop files anywhere to upload them."}
            </p>
          </Empty>
        )}
      </div>
      <FileQuestions
        addresses={space.addresses}
        onRenamed={(from, to) => {
          moveDrafts(from, to);
          void space.files.refresh();
          if (path === from) space.open(to);
          else if (path.startsWith(`${from}/`)) space.open(to + path.slice(from.length));
        }}
        onGone={(gone) => {
          dropDrafts(gone);
          void space.files.refresh();
          if (path === gone || path.startsWith(`${gone}/`)) space.open("");
        }}
      />
    </div>
  );
}
