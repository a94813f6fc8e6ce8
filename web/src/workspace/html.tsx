/** A page that the model made, in a frame of an opaque origin: without its scripts until the person says otherwise. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { RawUrl } from "../common/api.generated";
import { shownName } from "../common/format";
import { HttpError, request } from "../common/http";
import { ending } from "../common/kinds";
import type { Addresses } from "../common/page";
import { Empty } from "../ui/parts";
import { Away, useAway } from "./away";

/** Where the page is to be had, and which folder it can read; an empty one is all of the chat. */
interface Granted extends RawUrl {
  scripts: boolean;
}

const memory = (chat: string) => `cubicle.run.${chat}`;

/** What the person chose for this chat in this browser; null: nothing yet. */
function chosenFor(chat: string): boolean | null {
  try {
    const kept = localStorage.getItem(memory(chat));
    return kept === null ? null : kept === "true";
  } catch {
    return null; // no store
  }
}

function choose(chat: string, run: boolean): void {
  try {
    localStorage.setItem(memory(chat), String(run));
  } catch {
    // no store: it holds for as long as the file is open
  }
}

export function HtmlPage(props: { addresses: Addresses; path: string; name: string; run: boolean }) {
  const { addresses, path } = props;
  const chosen = useSignal(chosenFor(addresses.chat) ?? props.run);
  // An XHTML file takes no guard before it.
  const able = ending(path.slice(path.lastIndexOf("/") + 1)) !== "xhtml";
  const scripts = able && chosen.value;
  const all = useSignal(false);
  const granted = useSignal<Granted | null>(null);
  const problem = useSignal("");
  const attempt = useSignal(0);
  const { away, failed, back } = useAway();
  useEffect(() => {
    const stop = new AbortController();
    problem.value = "";
    request(addresses.grant(path, { scripts, all: all.value }), { method: "POST", signal: stop.signal })
      .then((response) => response.json() as Promise<RawUrl>)
      .then(
        (answer) => {
          back();
          granted.value = { url: new URL(answer.url, addresses.root).href, folder: answer.folder, scripts };
        },
        (error: unknown) => {
          if (stop.signal.aborted || failed(error)) return;
          back();
          problem.value = error instanceof HttpError ? error.message : "The page could not be shown.";
        },
      );
    return () => stop.abort();
  }, [addresses, path, scripts, all.value, attempt.value]);
  if (away.why)
    return (
      <Away
        {...away}
        onRetry={() => {
          attempt.value += 1;
        }}
      />
    );
  if (problem.value)
    return (
      <Empty icon="file" title="This page cannot be shown">
        <p>{problem.value}</p>
      </Empty>
    );
  const shown = granted.value;
  if (!shown) return null;
  return (
    <div class="page-view">
      <PageBar
        able={able}
        shown={shown}
        onRun={(on) => {
          chosen.value = on;
          choose(addresses.chat, on);
          all.value = false;
        }}
        onAll={() => {
          all.value = true;
        }}
      />
      <iframe
        key={shown.url}
        class="file-frame page"
        title={`The page ${props.name}`}
        sandbox={shown.scripts ? "allow-scripts" : ""}
        referrerpolicy="no-referrer"
        src={shown.url}
      />
    </div>
  );
}

/** What the page can do, and what the person can let it do. */
function PageBar(props: { able: boolean; shown: Granted; onRun: (on: boolean) => void; onAll: () => void }) {
  const { scripts, folder } = props.shown;
  const reads = folder ? `It reads files in ${shownName(folder)} only.` : "It reads all files of this chat.";
  return (
    <div class="page-bar" role="group" aria-label="What this page can do">
      <span role="status">
        {scripts ? "Scripts run. " : "Shown without scripts. "}
        <span class="muted">{reads}</span>
      </span>
      <span class="grow" />
      {folder && (
        <button type="button" class="plain" onClick={props.onAll}>
          Allow all files of this chat
        </button>
      )}
      {scripts ? (
        <button type="button" onClick={() => props.onRun(false)}>
          Stop scripts
        </button>
      ) : (
        props.able && (
          <button type="button" class="primary" onClick={() => props.onRun(true)}>
            Run this page
          </button>
        )
      )}
    </div>
  );
}
