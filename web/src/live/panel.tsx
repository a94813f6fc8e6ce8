/** The live browser with its tools: alone on its page, and as a panel of the workspace. */
import "./live.css";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { BackToChat, IconButton, LinkNotice, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { toast } from "../ui/toast";
import { capture } from "./capture";
import { toAddress } from "./input";
import { driverName } from "./name";
import { Asking, Watchers } from "./people";
import { Popups } from "./popups";
import { LiveView } from "./view";
import { useWantedControl } from "./wanted";

const nameOfDriver = () => driverName.value;

function Tabs({ view }: { view: LiveView }) {
  const off = !view.driving;
  const owned = view.tabs.value.map((_, n) => `live-tab-${n}`).join(" ");
  // A tab list may hold nothing but tabs: so it only names those that stand among the buttons.
  return (
    <div class="live-tabs">
      {owned && <div role="tablist" aria-label="Tabs of the browser" aria-owns={owned} />}
      {view.tabs.value.map((tab, n) => {
        const active = tab.id === view.active.value;
        const title = shownName(tab.title || tab.url || "New tab");
        const used = tab.id === view.followed.value && view.tabs.value.length > 1;
        return (
          <div class={`live-tab ${active ? "active" : ""}`} key={tab.id}>
            <button
              type="button"
              role="tab"
              id={`live-tab-${n}`}
              aria-selected={active}
              class="plain cut"
              title={title}
              onClick={() =>
                off ? view.look(tab.id) : view.drive({ type: "tab", action: "activate", id: tab.id })
              }
            >
              {used && <span class="live-used" role="img" aria-label="In use" />}
              <span class="cut">{title}</span>
            </button>
            {!off && (
              <IconButton
                icon="close"
                label={`Close the tab ${title}`}
                onClick={() => view.drive({ type: "tab", action: "close", id: tab.id })}
              />
            )}
          </div>
        );
      })}
      {!view.following.value && (
        <button type="button" class="live-follow" onClick={() => view.look()}>
          <Icon name="eye" />
          Follow
        </button>
      )}
      {!off && (
        <IconButton icon="plus" label="New tab" onClick={() => view.drive({ type: "tab", action: "open" })} />
      )}
    </div>
  );
}

function Address({ view }: { view: LiveView }) {
  const editing = useSignal<string | null>(null);
  const url = view.tabs.value.find((t) => t.id === view.active.value)?.url ?? "";
  return (
    <form
      class="grow live-address"
      onSubmit={(event) => {
        event.preventDefault();
        const untouched = editing.value === null || editing.value === shownName(url);
        const target = toAddress(untouched ? url : (editing.value ?? ""));
        if (!target) {
          toast("That is not an address. Write one such as example.org or localhost:3000.");
          return;
        }
        view.drive({ type: "nav", action: "go", url: target });
        editing.value = null;
        (document.activeElement as HTMLElement | null)?.blur();
      }}
    >
      <input
        aria-label="Address"
        inputMode="url"
        autoComplete="off"
        spellcheck={false}
        readOnly={!view.driving}
        value={editing.value ?? shownName(url)}
        onFocus={(event) => {
          // From now on it stays as it is: an address that changes under the cursor would be written to.
          editing.value = event.currentTarget.value;
          event.currentTarget.select();
        }}
        onInput={(event) => {
          editing.value = event.currentTarget.value;
        }}
        onBlur={() => {
          editing.value = null;
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
    </form>
  );
}

function ControlButton({ view }: { view: LiveView }) {
  const open = view.link.state.value.kind === "open";
  switch (view.control.value) {
    case "yours":
      return (
        <button type="button" class="primary" onClick={() => view.giveBack()}>
          Return control
        </button>
      );
    case "theirs":
      return (
        <button type="button" onClick={() => view.ask()}>
          Ask {shownName(view.driver.value || "the other person").slice(0, 24)} for control
        </button>
      );
    default:
      return (
        <button
          type="button"
          disabled={!open || view.control.value === "asked"}
          onClick={() => view.take(driverName.value)}
        >
          <Icon name="keyboard" />
          Take control
        </button>
      );
  }
}

function ControlNotice({ view }: { view: LiveView }) {
  if (view.control.value === "yours") {
    return (
      <div class="notice accent" role="status">
        <Icon name="keyboard" />
        <span class="grow">
          <strong>You have control.</strong>{" "}
          {view.modelWaits.value && <span>The model waits for you: return control when you are done. </span>}
          <span class="muted wide-only">
            Your mouse and keys go to the computer's browser; Shift+Esc leaves the picture.
          </span>
        </span>
      </div>
    );
  }
  if (view.control.value !== "theirs") return null;
  return (
    <div class="notice" role="status">
      <span class="grow">
        {shownName(view.driver.value || "Another person")} has control; you are watching.
      </span>
    </div>
  );
}

function waitingFor(view: LiveView): string {
  const tab = view.tabs.value.find((t) => t.id === view.active.value);
  if (tab) return `Waiting for a picture of ${shownName(tab.title || tab.url || "the new tab")}…`;
  const none = view.browser.value.browser === "running" && !view.tabs.value.length;
  return none ? "No tab is open." : "Waiting for the first picture…";
}

function Picture(props: { view: LiveView; addresses: Addresses; shared: boolean }) {
  const { view, addresses, shared } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const keys = useRef<HTMLTextAreaElement>(null);
  const stage = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!canvas.current || !keys.current || !stage.current) return undefined;
    const picture = canvas.current;
    view.attach(picture);
    const release = capture(view, picture, keys.current);
    const look = () =>
      view.show(Math.round(picture.clientWidth * devicePixelRatio), document.visibilityState === "visible");
    const sizes = new ResizeObserver(look);
    sizes.observe(stage.current);
    document.addEventListener("visibilitychange", look);
    return () => {
      release();
      sizes.disconnect();
      document.removeEventListener("visibilitychange", look);
      if (shared) view.detach();
      else view.dispose();
    };
  }, [view, shared]);
  const { w, h } = view.viewport.value;
  const { browser, reason } = view.browser.value;
  const driving = view.driving;
  return (
    <div class="live-stage" ref={stage}>
      <div class={`live-picture ${driving ? "driving" : ""}`} style={{ "--w": w, "--h": h }}>
        <canvas
          ref={canvas}
          role="img"
          aria-label="Picture of the computer's browser"
          style={{ cursor: driving ? view.cursor.value : "default" }}
          onClick={() => {
            if (!driving && view.control.value === "watching")
              toast(
                addresses.viewOnly
                  ? "Your link lets you look: it cannot click or type."
                  : "You are watching. Take control to click and type.",
              );
          }}
        />
        <textarea
          ref={keys}
          class="live-keys"
          aria-label="Keyboard for the computer's browser. Shift+Escape leaves it."
          autoCapitalize="off"
          autoComplete="off"
          spellcheck={false}
          tabIndex={driving ? 0 : -1}
        />
        <Popups view={view} addresses={addresses} />
        {!view.hasPicture.value && (
          <div class="live-blank" role="status">
            {view.link.state.value.kind === "asleep"
              ? "Nothing runs here now."
              : browser === "running" || browser === "starting"
                ? waitingFor(view)
                : reason || "The browser is closed."}
          </div>
        )}
      </div>
    </div>
  );
}

/** With a `view` it shows one that others use as well, and that stays when the panel goes. */
export function LivePanel(props: { addresses: Addresses; alone: boolean; view?: LiveView | undefined }) {
  const { addresses, alone } = props;
  // The shared view goes when the browser ends, and the panel's own goes on from there. One that drives is not replaced.
  const own = useRef<LiveView | null>(null);
  const seen = useRef(false);
  if (!props.view) own.current ??= new LiveView(addresses, driverName.peek(), false, seen.current);
  else if (!own.current?.driving) own.current = null;
  const view = own.current ?? (props.view as LiveView);
  seen.current ||= view.link.state.value.kind === "open";
  useWantedControl(view, nameOfDriver);
  const { word, tone } = view.word.value;
  const { back, forward, loading } = view.history.value;
  const { browser, reason } = view.browser.value;
  const off = !view.driving;
  const Heading = alone ? "h1" : "h2";
  const nav = (action: "back" | "forward" | "reload" | "stop") => view.drive({ type: "nav", action });
  return (
    <section class="live-panel" aria-label="Browser">
      <header class="bar">
        <Icon name="browser" />
        <Heading>Browser</Heading>
        {alone && <BackToChat addresses={addresses} />}
        <span class={`chip ${tone}`} role="status">
          {word}
        </span>
        <Watchers view={view} />
        <span class="grow" />
        {addresses.viewOnly ? (
          <span class="chip" title="Your link lets you look: it cannot take control">
            View only
          </span>
        ) : (
          <ControlButton view={view} />
        )}
        {alone && <ThemeButton />}
      </header>
      {alone && <ViewOnlyNotice addresses={addresses} />}
      <Tabs view={view} />
      <nav class="bar live-nav" aria-label="Navigation in the computer's browser">
        <IconButton icon="back" label="Back" disabled={off || !back} onClick={() => nav("back")} />
        <IconButton
          icon="forward"
          label="Forward"
          disabled={off || !forward}
          onClick={() => nav("forward")}
        />
        <IconButton
          icon={loading ? "close" : "reload"}
          label={loading ? "Stop" : "Reload"}
          disabled={off}
          onClick={() => nav(loading ? "stop" : "reload")}
        />
        <Address view={view} />
      </nav>
      <LinkNotice
        state={view.link.state.value}
        login={addresses.login()}
        onRetry={(wake) => view.link.start(wake)}
      />
      {browser === "crashed" && view.link.state.value.kind === "open" && (
        <div class="notice bad" role="alert">
          <span class="grow">{reason || "This page crashed."}</span>
          <button type="button" disabled={off} onClick={() => nav("reload")}>
            Reload the page
          </button>
        </div>
      )}
      {view.refusal.value && view.link.state.value.kind === "open" && (
        <div class="notice warn" role="status">
          <span class="grow">{shownName(view.refusal.value)}</span>
        </div>
      )}
      <ControlNotice view={view} />
      <Asking view={view} />
      <Picture view={view} addresses={addresses} shared={own.current === null} />
    </section>
  );
}
