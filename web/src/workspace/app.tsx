/** The workspace: a rail of panels, one or two of them on the screen. */
import { computed, signal, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { LazyActivity } from "../activity/lazy";
import { Activity } from "../activity/stream";
import { shownName } from "../common/format";
import { Addresses, isPlain, type PageData, seen } from "../common/page";
import { nextTheme } from "../common/theme";
import { LazyLive } from "../live/lazy";
import { MoreMenu, ShareButton, SignOut } from "../share/dialog";
import { LazyTerminal } from "../terminal/lazy";
import { Brand } from "../ui/brand";
import { Icon } from "../ui/icon";
import { IconButton, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { toast } from "../ui/toast";
import { AgentsPanel } from "./agents";
import { Awake } from "./awake";
import { DemoBar, isDemo } from "./demo";
import { Files } from "./files";
import { FileSearch } from "./filesearch";
import { FilesPanel } from "./filespanel";
import { Follower } from "./follow";
import {
  closePane,
  following,
  followModel,
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
import { NowLine, waitingFor } from "./now";
import { nowOf } from "./nowline";
import { NowPanel } from "./nowpanel";
import { type Command, Palette } from "./palette";
import { placeIn, visitPanel } from "./place";
import { PortChips, PortsPanel } from "./portpanel";
import { Ports } from "./ports";
import { FileView } from "./show";
import { StatusChips } from "./status";
import { Uploads } from "./uploads";

/** Everything the panels share. */
export class Workspace {
  readonly addresses: Addresses;
  readonly assets: string;
  readonly files: Files;
  readonly uploads: Uploads;
  readonly activity: Activity;
  readonly awake: Awake;
  readonly ports: Ports;
  readonly search: FileSearch;
  readonly openPath = signal("");
  readonly filesView = signal<"files" | "changes">("files");
  readonly follower: Follower;
  /** What the model does now, for the header and the title of the page. */
  readonly now = computed(() =>
    nowOf(this.activity.calls.value, {
      sandbox: this.ports.overview.value.sandbox,
      waiting: waitingFor(this.follower.live.value),
    }),
  );
  readonly title = computed(() => {
    const path = this.openPath.value;
    return `${shownName(path.slice(path.lastIndexOf("/") + 1)) || "Workspace"} · ${this.page.chat}`;
  });

  constructor(readonly page: PageData) {
    this.addresses = new Addresses(page);
    this.assets = new URL(page.assets, document.location.href).href;
    this.awake = new Awake(this.addresses, page.sandbox, () => void this.files.refresh());
    this.files = new Files(this.addresses, (error) => this.awake.takes(error));
    this.uploads = new Uploads(this.addresses, () => {
      this.awake.note("running");
      void this.files.refresh();
    });
    this.activity = new Activity(
      this.addresses.events(),
      () => this.files.refreshSoon(),
      (before) => this.addresses.earlier(before),
    );
    this.ports = new Ports(this.addresses.ports());
    this.follower = new Follower({
      calls: this.activity.calls,
      overview: this.ports.overview,
      showing: following,
      watch: async () => {
        const [{ LiveView }, { driverName }] = await Promise.all([
          import("../live/view"),
          import("../live/name"),
        ]);
        return new LiveView(this.addresses, driverName.peek(), true);
      },
    });
    this.search = new FileSearch(this.addresses);
    this.#go(page.path.replace(/\/$/, ""));
    this.#place();
  }

  /** The panel that the address names comes to the front. */
  #place(): void {
    const { panel, port, view } = placeIn(location.href);
    this.filesView.value = view;
    if (port !== null) this.ports.chosen.value = port;
    if (panel) showPanel(panel);
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
    const stopFollowing = this.follower.start();
    // Each entry of the history knows its own file: after a reload, the page's first one is that of another.
    history.replaceState({ path: this.openPath.value }, "");
    const onBack = (event: PopStateEvent) => {
      const state = event.state as { path?: unknown } | null;
      if (typeof state?.path === "string") this.#go(state.path);
      this.#place();
    };
    addEventListener("popstate", onBack);
    return () => {
      removeEventListener("popstate", onBack);
      stopFollowing();
      this.activity.stop();
      stopPorts();
    };
  }

  /** Shows again what the model uses, whatever a person chose before. */
  readonly follow = (): void => {
    this.follower.unpin();
    if (!following.value) followModel();
    visitPanel("now");
  };

  get isFollowing(): boolean {
    return following.value && !this.follower.pinned;
  }

  readonly open = (path: string): void => {
    if (!isPlain(path)) return;
    if (path !== this.openPath.value) {
      const view = this.filesView.value === "changes" ? "?panel=files&view=changes" : "";
      const address = new URL(seen(this.addresses.preview(path)));
      for (const [name, value] of new URLSearchParams(view)) address.searchParams.set(name, value);
      history.pushState({ path }, "", address.href);
    }
    this.#go(path);
    this.files.seen(path);
  };
}

function Panel({ space, name }: { space: Workspace; name: PanelName }) {
  switch (name) {
    case "now":
      return <NowPanel space={space} />;
    case "files":
      return <FilesPanel space={space} />;
    case "browser":
      return (
        <LazyLive addresses={space.addresses} alone={false} view={space.follower.live.value ?? undefined} />
      );
    case "ports":
      return <PortsPanel ports={space.ports} addresses={space.addresses} awake={space.awake} />;
    case "terminal":
      return <LazyTerminal addresses={space.addresses} alone={false} />;
    case "agents":
      return <AgentsPanel addresses={space.addresses} awake={space.awake} />;
    case "activity":
      return (
        <LazyActivity
          activity={space.activity}
          addresses={space.addresses}
          files={space.files}
          onOpen={space.open}
        />
      );
  }
}

function Rail({ space }: { space: Workspace }) {
  return (
    <nav class="rail" aria-label="Panels">
      {PANELS.map((name) => (
        <button
          type="button"
          key={name}
          class={`plain ${panes.value[front.value] === name ? "front" : ""}`}
          aria-current={panes.value.includes(name) ? "true" : undefined}
          onClick={() => (name === "now" ? space.follow() : visitPanel(name))}
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
    const take = (files: FileList | undefined, pasted: boolean): boolean => {
      if (!files?.length) return false;
      if (space.addresses.viewOnly) {
        toast("Your link lets you look: it cannot upload.");
        return true;
      }
      space.uploads.add(files, pasted);
      const name = space.uploads.all.value.at(-1)?.name ?? "";
      toast(files.length === 1 ? `Uploading ${name}` : `Uploading ${files.length} files`);
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
      if (take(event.dataTransfer?.files, false)) event.preventDefault();
    });
    on("paste", (event) => {
      if (take(event.clipboardData?.files, true)) event.preventDefault();
    });
    return () => stop.abort();
  }, [space, over]);
  return { over: over.value };
}

function commandsOf(space: Workspace): Command[] {
  return [
    { title: "Follow the model", run: space.follow },
    ...PANELS.filter((name) => name !== "now").map((name) => ({
      title: `Show ${PANEL_WORDS[name].title}`,
      run: () => visitPanel(name),
    })),
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
    { title: "Replay", run: () => location.assign(space.addresses.replayPage()) },
    ...space.files.known().map((e) => ({ title: e.path, run: () => space.open(e.path) })),
  ];
}

export function App({ page }: { page: PageData }) {
  const space = useMemo(() => new Workspace(page), [page]);
  const palette = useSignal(false);
  const demo = useMemo(() => isDemo() && !space.addresses.viewOnly, [space]);
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
        <Brand home={space.addresses.viewOnly ? undefined : space.addresses.root.href} short />
        <h1 class="cut">{page.chat}</h1>
        <NowLine now={space.now} rest={space.title} />
        <span class="grow" />
        <button
          type="button"
          class="follow-button"
          aria-pressed={space.isFollowing}
          aria-label="Follow the model"
          title={space.isFollowing ? "Keep what is on the screen" : "Show what the model uses, as it does"}
          onClick={() => (space.isFollowing ? space.follower.pin() : space.follow())}
        >
          <Icon name="eye" />
          <span class="wide-only">{space.isFollowing ? "Following" : "Follow the model"}</span>
        </button>
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
        <div class="top-tools wide-only">
          <ThemeButton />
          <a class="button plain" href={space.addresses.replayPage()} aria-label="Replay" title="Replay">
            <Icon name="history" />
          </a>
          <ShareButton page={page} addresses={space.addresses} opens="chat" path={space.openPath.value} />
          <SignOut page={page} addresses={space.addresses} />
        </div>
        <MoreMenu page={page} addresses={space.addresses} path={space.openPath.value} />
      </header>
      <ViewOnlyNotice addresses={space.addresses} />
      {demo && <DemoBar addresses={space.addresses} />}
      <Rail space={space} />
      <Panes space={space} />
      <footer class="status-bar">
        <StatusChips addresses={space.addresses} awake={space.awake} ports={space.ports} />
        <PortChips ports={space.ports} />
      </footer>
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

/** The bare viewer, for a frame in a chat front end; with its name and its tools for who has a link to the file. */
export function Embedded({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const awake = useMemo(() => new Awake(addresses, page.sandbox, () => undefined), [addresses, page]);
  const path = useSignal(page.path);
  const assets = new URL(page.assets, document.location.href).href;
  return (
    <main class="alone">
      <h1 class="visually-hidden">{shownName(path.value.slice(path.value.lastIndexOf("/") + 1))}</h1>
      <FileView
        addresses={addresses}
        assets={assets}
        run={page.run}
        path={path.value}
        awake={awake}
        embed={page.opens !== "file" || new URL(location.href).searchParams.has("embed")}
        onOpen={(next) => {
          path.value = next;
        }}
      />
    </main>
  );
}
