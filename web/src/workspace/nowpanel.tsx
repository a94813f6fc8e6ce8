/** The panel that follows the model: it shows what is used now, and changes by itself. */
import { useEffect } from "preact/hooks";
import { LazyOutput } from "../activity/lazy";
import { plainText, seconds, shownName } from "../common/format";
import { LazyLive } from "../live/lazy";
import { Icon } from "../ui/icon";
import { Empty } from "../ui/parts";
import type { Workspace } from "./app";
import { DownFile } from "./awake";
import { type Call, codeOf, gist, stateOf, task } from "./calls";
import type { Focus } from "./follow";
import { useOpened } from "./opened";
import { PortsPanel } from "./portpanel";
import { FileView } from "./show";

const TONES = { running: "accent", done: "ok", failed: "bad" };

/** What is shown, in a word. */
export function wordsOf(focus: Focus): string {
  switch (focus.kind) {
    case "browser":
      return "Browser";
    case "file":
      return shownName(focus.path.slice(focus.path.lastIndexOf("/") + 1));
    case "port":
      return `Port ${focus.port}`;
    case "command":
      return "Command";
    case "none":
      return "Nothing yet";
  }
}

/** A command and what it prints, as in a terminal that nobody types into. */
function CommandView({ call }: { call: Call }) {
  const pieces = call.output ? call.pieces : call.result ? [{ from: 0, text: call.result }] : [];
  return (
    <section class="panel command" aria-label="Command">
      <header class="bar">
        <Icon name="terminal" />
        <h3 class="cut grow">{shownName(call.description || gist(call))}</h3>
        <span class={`chip ${TONES[call.state]}`}>{stateOf(call)}</span>
        <span class="muted">
          {[codeOf(call), call.seconds === null ? "" : seconds(call.seconds)].filter(Boolean).join(" · ")}
        </span>
      </header>
      <div class="command-screen">
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
        <pre class="command-line" role="group" tabIndex={0} aria-label="Text of the command">
          {plainText(task(call))}
        </pre>
        {pieces.length > 0 ? (
          <LazyOutput id={call.id} pieces={pieces} label="Output of the command" />
        ) : (
          call.state !== "running" && <pre class="muted">It printed nothing.</pre>
        )}
        {call.notes.map((note, n) => (
          <pre key={n} class="muted">
            {plainText(note)}
          </pre>
        ))}
      </div>
    </section>
  );
}

function FollowedFile({ space, path }: { space: Workspace; path: string }) {
  const opened = useOpened(space.addresses, path, space.files);
  return (
    <FileView
      key={path}
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
      onClose={() => space.open(path)}
    />
  );
}

function Followed({ space, focus }: { space: Workspace; focus: Focus }) {
  useEffect(() => {
    if (focus.kind === "port") space.ports.chosen.value = focus.port;
  }, [focus, space]);
  const call = focus.kind === "command" && space.activity.calls.value.find((one) => one.id === focus.call);
  const live = space.follower.live.value;
  if (call) return <CommandView key={call.id} call={call} />;
  if (focus.kind === "browser" && live) {
    return <LazyLive addresses={space.addresses} alone={false} view={live} />;
  }
  if (focus.kind === "file") return <FollowedFile space={space} path={focus.path} />;
  if (focus.kind === "port") {
    return <PortsPanel ports={space.ports} addresses={space.addresses} awake={space.awake} />;
  }
  if (focus.kind === "browser") {
    return (
      <Empty icon="browser" title="The browser is quiet">
        <p>Nobody has used it for a while. It is shown again when the model uses it.</p>
        <button type="button" onClick={space.follower.look}>
          Look at it now
        </button>
      </Empty>
    );
  }
  if (!space.awake.made) return <DownFile awake={space.awake} />;
  return (
    <Empty icon="eye" title="Nothing is used yet">
      <p>What the model uses appears here by itself: its browser, the files it writes, commands, ports.</p>
    </Empty>
  );
}

export function NowPanel({ space }: { space: Workspace }) {
  const { follower } = space;
  const focus = follower.shown;
  return (
    <section class="panel now-panel" aria-label="What the model uses">
      <header class="bar now-strip">
        <Icon name="eye" />
        <h2>{follower.pinned ? "Pinned" : "Following"}</h2>
        <span class="cut grow muted" role="status" aria-label="Shown now">
          {wordsOf(focus)}
        </span>
        {follower.pinned ? (
          <button type="button" class="plain" onClick={() => follower.unpin()}>
            Follow
          </button>
        ) : (
          focus.kind !== "none" && (
            <button
              type="button"
              class="plain"
              title="Keep this on the screen"
              onClick={() => follower.pin()}
            >
              Pin
            </button>
          )
        )}
      </header>
      <div class="now-body">
        <Followed space={space} focus={focus} />
      </div>
    </section>
  );
}
