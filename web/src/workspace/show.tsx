/** One open file: its tools, and the viewer that suits it. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { bytes, shownName } from "../common/format";
import { HttpError, request } from "../common/http";
import { ending, hasSource, type Kind, kindOfName, SHOWN_BY_BROWSER } from "../common/kinds";
import { lazy } from "../common/lazy";
import type { Addresses } from "../common/page";
import { targetOf } from "../common/sandbox";
import { Icon, type IconName } from "../ui/icon";
import { type Action, MenuButton } from "../ui/menu";
import { Empty, IconButton } from "../ui/parts";
import { offerLink, toast } from "../ui/toast";
import type { Show } from "../viewer/messages";
import { type Awake, DownFile } from "./awake";
import { Away, useAway } from "./away";
import { actionsOf, rootOf } from "./fileactions";
import { iconOf } from "./fileicons";
import { lineIn } from "./foundline";
import { ViewerFrame } from "./frame";
import { HtmlPage } from "./html";
import { load } from "./load";
import { noOffice, OfficePdf } from "./office";
import type { Opened } from "./opened";
import { ZoomedPicture } from "./zoomed";

const LazyEditor = lazy(async () => (await import("./editor")).Editor);
const LazyLog = lazy(async () => (await import("./logview")).LogView);
const LazyVersions = lazy(async () => (await import("./versions")).Versions);

/** A text of which only the first part is shown otherwise. */
const LARGE = 4 * 1024 * 1024;

/** How a file is looked at: as what it is, as an editor, by its growing end, or as it is printed. */
type Mode = "view" | "edit" | "tail" | "print";

export interface FileProps {
  addresses: Addresses;
  assets: string;
  /** Whether the scripts of HTML files run without a click. */
  run: boolean;
  path: string;
  /** Opens another file of the chat. */
  onOpen: (path: string) => void;
}

/** A link in a file: to another file of the chat, or out. */
export function follow(written: string, from: string, onOpen: (path: string) => void): void {
  // What a browser leaves out of an address must not hide what kind of address it is.
  const href = written.replace(/[\t\n\r]/g, "").trim();
  if (/^([a-z][a-z\d+.-]*:|[/\\]{2})/i.test(href)) {
    offerLink(/^[/\\]/.test(href) ? `https:${href}` : href);
    return;
  }
  const target = targetOf(href, from);
  if (target === null) toast("This link leads out of the files of this chat.");
  else if (target) onOpen(target);
}

function Unshown(props: { why: string; download: string | null }) {
  return (
    <Empty icon="file" title="This file cannot be shown">
      <p>{props.why}</p>
      {props.download && (
        <a class="button" href={props.download} download>
          <Icon name="download" /> Download
        </a>
      )}
    </Empty>
  );
}

function Framed(props: FileProps & { asText: boolean; onSize: (size: number) => void }) {
  const { addresses, path, asText } = props;
  const show = useSignal<Show | null>(null);
  const problem = useSignal("");
  const missing = useSignal(false);
  const drawn = useSignal(false);
  const attempt = useSignal(0);
  const { away, failed, back } = useAway();
  const name = path.slice(path.lastIndexOf("/") + 1);
  useEffect(() => {
    const stop = new AbortController();
    problem.value = "";
    drawn.value = false;
    load(addresses.file(path), name, asText, stop.signal).then(
      (file) => {
        if (stop.signal.aborted) return;
        back();
        props.onSize(file.size);
        const line = lineIn(path) ?? undefined;
        show.value = { type: "show", name, base: addresses.pictures(path), line, ...file };
      },
      (error: unknown) => {
        if (stop.signal.aborted || failed(error)) return;
        back();
        missing.value = error instanceof HttpError && error.status === 404;
        problem.value = error instanceof Error ? error.message : "The file could not be read.";
      },
    );
    return () => stop.abort();
  }, [addresses, path, asText, attempt.value]);
  const line = lineIn(path);
  useEffect(() => {
    const now = show.peek();
    if (line && now && now.line !== line) show.value = { ...now, line };
  }, [line]);
  if (away.why) {
    return (
      <Away
        {...away}
        onRetry={() => {
          attempt.value += 1;
        }}
      />
    );
  }
  if (problem.value) {
    return <Unshown why={problem.value} download={missing.value ? null : addresses.download(path)} />;
  }
  return (
    <>
      {!drawn.value && (
        <p class="file-wait muted" role="status">
          Loading…
        </p>
      )}
      {show.value && (
        <ViewerFrame
          assets={props.assets}
          show={show.value}
          onShown={() => {
            drawn.value = true;
          }}
          onFailed={(message) => {
            problem.value = message;
          }}
          onLink={(href) => follow(href, path, props.onOpen)}
        />
      )}
    </>
  );
}

/** What the browser itself shows. It does not say why it could not: so the service is asked whether it has the file. */
function Media(props: { kind: Kind; name: string; source: string; download: string }) {
  const { kind, name, source } = props;
  const broken = useSignal(false);
  const { away, failed, back } = useAway();
  const ask = () => {
    request(source, { method: "HEAD" }).then(
      () => {
        if (away.why) back();
        else broken.value = true;
      },
      (error: unknown) => {
        if (failed(error)) return;
        back();
        broken.value = true;
      },
    );
  };
  if (away.why) return <Away {...away} onRetry={ask} />;
  if (broken.value)
    return (
      <Unshown
        why="It may be damaged, or of a kind that this browser does not know."
        download={props.download}
      />
    );
  if (kind === "image") return <ZoomedPicture source={source} name={name} onError={ask} />;
  return (
    <div class="file-media">
      {kind === "audio" && <audio controls src={source} aria-label={name} onError={ask} />}
      {kind === "video" && <video controls src={source} aria-label={name} onError={ask} />}
    </div>
  );
}

function Contents(
  props: FileProps & { kind: Kind | null; asText: boolean; print: boolean; onSize: (size: number) => void },
) {
  const { addresses, path, kind, asText } = props;
  if (props.print)
    return (
      <OfficePdf
        addresses={addresses}
        assets={props.assets}
        path={path}
        otherwise={kind === "office" ? null : <Framed {...props} />}
        onLink={(href) => follow(href, path, props.onOpen)}
      />
    );
  const name = shownName(path.slice(path.lastIndexOf("/") + 1));
  if (!asText && kind === "html") return <HtmlPage {...props} name={name} />;
  if (!asText && kind && SHOWN_BY_BROWSER.has(kind))
    return (
      <Media source={addresses.file(path)} download={addresses.download(path)} kind={kind} name={name} />
    );
  return <Framed {...props} />;
}

/** A way to look at the file, which is on or off; on a phone only its icon is shown. */
function Toggle(props: {
  icon: IconName;
  words: string;
  title?: string;
  pressed: boolean;
  onToggle: (pressed: boolean) => void;
}) {
  return (
    <button
      type="button"
      title={props.title ?? props.words}
      aria-label={props.words}
      aria-pressed={props.pressed}
      onClick={() => props.onToggle(!props.pressed)}
    >
      <Icon name={props.icon} />
      <span class="wide-only">{props.words}</span>
    </button>
  );
}

function NotThere({ link }: { link: boolean }) {
  if (link)
    return (
      <Empty icon="file" title="This link leads to nothing that can be shown">
        <p role="status">What it names is not there, or lies outside the files of this chat.</p>
      </Empty>
    );
  return (
    <Empty icon="file" title="There is no such file yet">
      <p role="status">It is shown here as soon as it is there.</p>
    </Empty>
  );
}

/**
 * `opened`: what the path leads to, null while that is being found out; without it, the file is just read.
 * `link`: the path is a symbolic link.
 */
export function FileView(
  props: FileProps & {
    embed: boolean;
    opened?: Opened | null;
    awake: Awake;
    link?: boolean;
    onReload?: () => void;
    onClose?: () => void;
  },
) {
  const { addresses, path, opened } = props;
  const asText = useSignal(false);
  const mode = useSignal<Mode>("view");
  const quick = useSignal(false);
  const versions = useSignal(false);
  const round = useSignal(0);
  const size = useSignal<number | null>(null);
  const name = path.slice(path.lastIndexOf("/") + 1);
  const kind = kindOfName(name);
  // Without a look at what it is, the first word on the computer has to do.
  const asleep = opened === undefined ? props.awake.down : opened?.kind === "asleep";
  const source = kind !== null && hasSource(kind);
  const found = lineIn(path);
  useEffect(() => {
    if (found && source) asText.value = true;
    if (found) mode.value = "view";
  }, [found]);
  useEffect(() => {
    asText.value = source && found !== null;
    mode.value = "view";
    quick.value = false;
    versions.value = false;
    size.value = null;
  }, [path]);
  const there = opened?.kind === "file";
  const isText = kind === null || kind === "text" || hasSource(kind);
  const isLog = isText && (/\.(log|out|err)$/i.test(name) || (size.value ?? 0) > LARGE);
  const printable = kind === "docx" || kind === "slides" || kind === "sheet";
  const print =
    kind === "office" ||
    (printable && mode.value === "print") ||
    (printable && kind !== "sheet" && !quick.value && !noOffice.value);
  const actions = (): Action[] => [
    ...(isText && !isLog
      ? [
          {
            title: mode.peek() === "tail" ? "Show all of it" : "Follow its end",
            icon: "reload" as const,
            run: () => {
              mode.value = mode.peek() === "tail" ? "view" : "tail";
            },
          },
        ]
      : []),
    {
      title: "Versions",
      icon: "history",
      run: () => {
        versions.value = true;
      },
    },
    ...actionsOf({ path, root: rootOf(path), folder: false }, addresses).filter(
      (one) => one.title !== "Download",
    ),
  ];
  return (
    <section class="file-view" aria-label={`File ${shownName(name)}`}>
      {!props.embed && (
        <header class="bar">
          {props.onClose && (
            <IconButton icon="back" label="Close the file" onClick={props.onClose} class="phone-only" />
          )}
          <Icon name={iconOf(name)} class="wide-only" />
          <h2 class="cut" title={shownName(path)}>
            {shownName(name)}
          </h2>
          <span class="muted wide-only">
            {size.value === null ? ending(name).toUpperCase() : bytes(size.value)}
          </span>
          <span class="grow" />
          {source && (
            <Toggle
              icon="code"
              words="Source"
              pressed={asText.value}
              onToggle={(pressed) => {
                asText.value = pressed;
              }}
            />
          )}
          {there && isText && !addresses.viewOnly && (
            <Toggle
              icon="edit"
              words="Edit"
              pressed={mode.value === "edit"}
              onToggle={(pressed) => {
                mode.value = pressed ? "edit" : "view";
              }}
            />
          )}
          {there && isLog && (
            <Toggle
              icon="play"
              words="Follow end"
              title="Show the end of the file, and what is added to it"
              pressed={mode.value === "tail"}
              onToggle={(pressed) => {
                mode.value = pressed ? "tail" : "view";
              }}
            />
          )}
          {printable && !noOffice.value && (
            <Toggle
              icon="pages"
              words="As printed"
              pressed={print}
              onToggle={(pressed) => {
                quick.value = !pressed;
                mode.value = pressed ? "print" : "view";
              }}
            />
          )}
          <IconButton
            icon="reload"
            label="Read the file again"
            onClick={() => {
              round.value += 1;
              props.onReload?.();
            }}
          />
          <a
            class="button plain"
            href={addresses.download(path)}
            download
            aria-label="Download"
            title="Download"
          >
            <Icon name="download" />
          </a>
          {there && <MenuButton label={`More for ${shownName(name)}`} icon="more" actions={actions} />}
          {props.onClose && (
            <IconButton icon="close" label="Close the file" onClick={props.onClose} class="wide-only" />
          )}
        </header>
      )}
      {mode.value === "edit" && (
        <LazyEditor
          key={path}
          addresses={addresses}
          assets={props.assets}
          path={path}
          version={opened?.version ?? ""}
          onClose={() => {
            mode.value = "view";
          }}
          onSaved={() => props.onReload?.()}
        />
      )}
      {mode.value === "tail" && <LazyLog key={path} addresses={addresses} path={path} />}
      {versions.value && (
        <LazyVersions
          addresses={addresses}
          path={path}
          onRestored={() => props.onReload?.()}
          onClose={() => {
            versions.value = false;
          }}
        />
      )}
      <div
        class="file-body"
        hidden={mode.value === "edit" || mode.value === "tail"}
        key={`${path}\n${opened?.version ?? ""}\n${round.value}\n${asText.value}\n${print}`}
      >
        {opened?.kind === "missing" && <NotThere link={props.link ?? false} />}
        {asleep && <DownFile awake={props.awake} />}
        {!asleep && opened?.kind !== "missing" && opened !== null && (
          <Contents
            {...props}
            kind={kind}
            asText={asText.value}
            print={print}
            onSize={(told) => {
              size.value = told;
            }}
          />
        )}
      </div>
    </section>
  );
}
