/** The workspace: a rail of panels, one or two of them on the screen. */
import { signal, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { shownName } from "../common/format";
import { Addresses, isPlain, type PageData, seen } from "../common/page";
import { nextTheme } from "../common/theme";
import { LazyLive } from "../live/lazy";
import { LazyTerminal } from "../terminal/lazy";
import { Icon } from "../ui/icon";
import { Empty, IconButton, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { toast } from "../ui/toast";
import { Activity, ActivityPanel } from "./activity";
import { AgentsPanel } from "./agents";
import { Awake } from "./awake";
import { Files } from "./files";
import {
  closePane,
  front,
  moveSplit,
  PANEL_WORDS,
  PANELS,
  type PanelName,
  panes,
  share,
  showPanel,
  toggleSplit,
} from "./layout";
import { useOpened } from "./opened";
import { type Command, Palette } from "./palette";
import { PortChips, PortsPanel } from "./portpanel";
import { Ports } from "./ports";
import { FileView } from "./show";
import { StatusChips } from "./status";
import { Tree } from "./tree";
import { Uploads } from "./uploads";

/** Everything the panels share. */
class Workspace {
  readonly addresses: Addresses;
  readonly assets: string;
  readonly files: Files;
  readonly uploads: Uploads;
  readonly activity: Activity;
  readonly awake: Awake;
  readonly ports: Ports;
  readonly openPath = signal("");

  constructor(readonly page: PageData) {
    this.addresses = new Addresses(page);
    this.assets = new URL(page.assets, document.location.href).href;
    this.awake = new Awake(this.addresses, page.sandbox, () => void this.files.refresh());
    this.files = new Files(this.addresses, (error) => this.awake.takes(error));
    this.uploads = new Uploads(this.addresses, () => {
      this.awake.note("running");
      void this.files.refresh();
    });
    this.activity = new Activity(this.addresses.events(), () => this.files.refreshSoon());
    this.ports = new Ports(this.addresses.ports());
    this.#go(page.path.replace(/\/$/, ""));
  }

  /** An address that names a file shows it, whatever panels were on the screen last. */
  #go(path: string): void {
    this.openPath.value = path;
    if (path) showPanel("files");
  }

  start(): () => void {
    void this.files.refresh();
    this.activity.start();
    const stopPorts = this.ports.start();
    // Each entry of the history knows its own file: after a reload, the page's first one is that of another.
    history.replaceState({ path: this.openPath.value }, "");
    const onBack = (event: PopStateEvent) => {
      const state = event.state as { path?: unknown } | null;
      if (typeof state?.path === "string") this.#go(state.path);
    };
    addEventListener("popstate", onBack);
    return () => {
      removeEventListener("popstate", onBack);
      this.activity.stop();
      stopPorts();
    };
  }

  readonly open = (path: string): void => {
    if (!isPlain(path)) return;
    if (path !== this.openPath.value) history.pushState({ path }, "", seen(this.addresses.preview(path)));
    this.#go(path);
    const name = shownName(path.slice(path.lastIndexOf("/") + 1));
    document.title = `${name || "Workspace"} · ${this.page.chat}`;
    this.files.seen(path);
  };
}

function FilesPanel({ space }: { space: Workspace }) {
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
        open={path}
        onOpen={space.open}
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
    </div>
  );
}

function Panel({ space, name }: { space: Workspace; name: PanelName }) {
  switch (name) {
    case "files":
      return <FilesPanel space={space} />;
    case "browser":
      return <LazyLive addresses={space.addresses} alone={false} />;
    case "ports":
      return <PortsPanel ports={space.ports} addresses={space.addresses} awake={space.awake} />;
    case "terminal":
      return <LazyTerminal addresses={space.addresses} alone={false} />;
    case "agents":
      return <AgentsPanel addresses={space.addresses} awake={space.awake} />;
    case "activity":
      return <ActivityPanel activity={space.activity} addresses={space.addresses} onOpen={space.open} />;
  }
}

function Rail() {
  return (
    <nav class="rail" aria-label="Panels">
      {PANELS.map((name) => (
        <button
          type="button"
          key={name}
          class="plain"
          aria-current={panes.value.includes(name) ? "true" : undefined}
          onClick={() => showPanel(name)}
        >
          <Icon name={PANEL_WORDS[name].icon} />
          <span>{PANEL_WORDS[name].title}</span>
        </button>
      ))}
    </nav>
  );
}

function Splitter() {
  const drag = (event: PointerEvent) => {
    const host = (event.currentTarget as HTMLElement).parentElement;
    if (!host || !(event.buttons & 1)) return;
    const box = host.getBoundingClientRect();
    moveSplit((event.clientX - box.left) / box.width);
  };
  return (
    <div
      class="splitter"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the panes"
      aria-valuenow={Math.round(share.value * 100)}
      tabIndex={0}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={drag}
      onKeyDown={(event) => {
        if (event.key === "ArrowLeft") moveSplit(share.value - 0.05);
        if (event.key === "ArrowRight") moveSplit(share.value + 0.05);
      }}
    />
  );
}

function Panes({ space }: { space: Workspace }) {
  const [first, second] = panes.value;
  const pane = (name: PanelName, index: number) => (
    <div
      class={`pane ${index === front.value ? "front" : ""}`}
      key={name}
      style={second && index === 0 ? { flex: `0 1 ${share.value * 100}%` } : undefined}
      onPointerDown={() => {
        front.value = index;
      }}
    >
      {second && (
        <IconButton
          icon="close"
          class="pane-close"
          label={`Close ${PANEL_WORDS[name].title}`}
          onClick={() => closePane(index)}
        />
      )}
      <Panel space={space} name={name} />
    </div>
  );
  return (
    <main class={`panes ${second ? "two" : ""}`}>
      {first && pane(first, 0)}
      {second && <Splitter />}
      {second && pane(second, 1)}
    </main>
  );
}

/** Files may be dropped or pasted anywhere. */
function useFileDrop(space: Workspace): { over: boolean } {
  const over = useSignal(false);
  useEffect(() => {
    const stop = new AbortController();
    const on = <K extends keyof WindowEventMap>(type: K, handler: (event: WindowEventMap[K]) => void) =>
      addEventListener(type, handler, { signal: stop.signal });
    const take = (files: FileList | undefined): boolean => {
      if (!files?.length) return false;
      if (space.addresses.viewOnly) {
        toast("Your link lets you look: it cannot upload.");
        return true;
      }
      space.uploads.add(files);
      toast(files.length === 1 ? `Uploading ${files[0]?.name ?? ""}` : `Uploading ${files.length} files`);
      showPanel("files");
      return true;
    };
    on("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      over.value = !space.addresses.viewOnly;
    });
    on("dragleave", (event) => {
      if (!event.relatedTarget) over.value = false;
    });
    on("drop", (event) => {
      over.value = false;
      if (take(event.dataTransfer?.files)) event.preventDefault();
    });
    on("paste", (event) => {
      if (take(event.clipboardData?.files)) event.preventDefault();
    });
    return () => stop.abort();
  }, [space, over]);
  return { over: over.value };
}

function commandsOf(space: Workspace): Command[] {
  return [
    ...PANELS.map((name) => ({ title: `Show ${PANEL_WORDS[name].title}`, run: () => showPanel(name) })),
    { title: "One or two panes", run: toggleSplit },
    { title: "Dark or light colours", run: nextTheme },
    { title: "Download everything as a zip", run: () => location.assign(space.addresses.archive()) },
    {
      title: "Terminal on its own page",
      run: () => window.open(space.addresses.terminal(), "_blank", "noopener"),
    },
    {
      title: "Browser on its own page",
      run: () => window.open(space.addresses.browser(), "_blank", "noopener"),
    },
    ...space.files.known().map((e) => ({ title: e.path, run: () => space.open(e.path) })),
  ];
}

export function App({ page }: { page: PageData }) {
  const space = useMemo(() => new Workspace(page), [page]);
  const palette = useSignal(false);
  useEffect(() => space.start(), [space]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.code !== "KeyK" || !(event.ctrlKey || event.metaKey) || event.shiftKey) return;
      // In the terminal, Ctrl-K cuts the line.
      if (event.ctrlKey && event.target instanceof Element && event.target.closest(".xterm")) return;
      event.preventDefault();
      palette.value = true;
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [palette]);
  const { over } = useFileDrop(space);
  return (
    <div class="workspace">
      <header class="bar top">
        <h1 class="cut">{page.chat}</h1>
        <span class="grow" />
        <PortChips ports={space.ports} />
        <StatusChips addresses={space.addresses} awake={space.awake} />
        <IconButton
          icon="search"
          label="Go to (Ctrl+K)"
          onClick={() => {
            palette.value = true;
          }}
        />
        <IconButton
          icon="split"
          label="One or two panes"
          class="wide-only"
          pressed={panes.value.length === 2}
          onClick={toggleSplit}
        />
        <ThemeButton />
      </header>
      <ViewOnlyNotice addresses={space.addresses} />
      <Rail />
      <Panes space={space} />
      {over && <div class="drop-here">Drop to upload to this chat</div>}
      {palette.value && (
        <Palette
          commands={commandsOf(space)}
          onClose={() => {
            palette.value = false;
          }}
        />
      )}
    </div>
  );
}

/** The bare viewer, for a frame in a chat front end. */
export function Embedded({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const awake = useMemo(() => new Awake(addresses, page.sandbox, () => undefined), [addresses, page]);
  const path = useSignal(page.path);
  const assets = new URL(page.assets, document.location.href).href;
  return (
    <FileView
      addresses={addresses}
      assets={assets}
      run={page.run}
      path={path.value}
      awake={awake}
      embed={true}
      onOpen={(next) => {
        path.value = next;
      }}
    />
  );
}
