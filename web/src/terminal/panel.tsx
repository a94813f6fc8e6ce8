/** The terminal with its tools: alone on its page, and as a panel of the workspace. */
import "@xterm/xterm/css/xterm.css";
import "./terminal.css";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { shownName } from "../common/format";
import type { LinkState } from "../common/link";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { BackToChat, Dialog, IconButton, LinkNotice, ThemeButton, ViewOnlyNotice } from "../ui/parts";
import { askBeforePaste, changeFont, fontSize, readOnly, screenReader } from "./preferences";
import { Screen } from "./screen";
import { asOneLine } from "./ttyd";

const SHOWN_OF_PASTE = 4000;

function stateWord(state: LinkState): { word: string; tone: string } {
  switch (state.kind) {
    case "starting":
      return { word: "Connecting", tone: "accent" };
    case "open":
      return { word: "Connected", tone: "ok" };
    case "waiting":
      return { word: "Reconnecting", tone: "warn" };
    case "asleep":
      return { word: state.made ? "Asleep" : "Not made yet", tone: "" };
    case "closed":
      return { word: "Closed", tone: "bad" };
  }
}

const MATCHES = {
  matchBackground: "#7a6a1f",
  matchOverviewRuler: "#c9a227",
  activeMatchBackground: "#b5651d",
  activeMatchColorOverviewRuler: "#ff9d3c",
};

function SearchBar({ screen, onClose }: { screen: Screen; onClose: () => void }) {
  const text = useSignal("");
  const found = useSignal("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  useEffect(() => {
    const listener = screen.search.onDidChangeResults(({ resultIndex, resultCount }) => {
      found.value = resultCount ? `${resultIndex + 1} of ${resultCount}` : "No match";
    });
    return () => {
      listener.dispose();
      screen.search.clearDecorations();
    };
  }, [screen, found]);
  const next = () => text.value && screen.search.findNext(text.value, { decorations: MATCHES });
  const previous = () => text.value && screen.search.findPrevious(text.value, { decorations: MATCHES });
  return (
    <search class="terminal-search">
      <input
        ref={field}
        type="search"
        aria-label="Search in the terminal"
        placeholder="Search"
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          found.value = "";
          screen.search.findNext(text.value, { decorations: MATCHES, incremental: true });
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") event.shiftKey ? previous() : next();
          if (event.key === "Escape") onClose();
        }}
      />
      <span class="muted found" role="status">
        {found.value}
      </span>
      <IconButton icon="back" label="Previous match" onClick={previous} />
      <IconButton icon="forward" label="Next match" onClick={next} />
      <IconButton icon="close" label="Close search" onClick={onClose} />
    </search>
  );
}

function PasteGuard({ screen, text }: { screen: Screen; text: string }) {
  const done = (paste: string | null) => {
    screen.heldPaste.value = null;
    if (paste !== null) screen.paste(paste);
    screen.focus();
  };
  const lines = text.replace(/\r?\n$/, "").split(/\r\n|\r|\n/);
  const shown = text
    .slice(0, SHOWN_OF_PASTE)
    .split(/\r\n|\r|\n/)
    .map(shownName)
    .join("\n");
  return (
    <Dialog title={`Paste ${lines.length.toLocaleString()} lines?`} onClose={() => done(null)}>
      <p class="muted">A line end can run a command at once. This is what would be pasted:</p>
      <pre>{text.length > SHOWN_OF_PASTE ? `${shown}\n…` : shown}</pre>
      <label class="check">
        <input
          type="checkbox"
          checked={!askBeforePaste.value}
          onChange={(event) => {
            askBeforePaste.value = !event.currentTarget.checked;
          }}
        />
        Do not ask again in this browser
      </label>
      <div class="actions">
        <button type="button" onClick={() => done(null)}>
          Cancel
        </button>
        <button type="button" onClick={() => done(asOneLine(text))}>
          As one line
        </button>
        <button type="button" class="primary" autoFocus onClick={() => done(text)}>
          Paste
        </button>
      </div>
    </Dialog>
  );
}

/** Keys that a phone's keyboard lacks. */
const PHONE_KEYS: [label: string, text: string][] = [
  ["Esc", "\u001b"],
  ["Tab", "\t"],
  ["Ctrl-C", "\u0003"],
  ["Ctrl-D", "\u0004"],
  ["←", "\u001b[D"],
  ["↑", "\u001b[A"],
  ["↓", "\u001b[B"],
  ["→", "\u001b[C"],
];

function PhoneKeys({ screen }: { screen: Screen }) {
  return (
    <div class="phone-keys phone-only" role="toolbar" aria-label="Special keys">
      {PHONE_KEYS.map(([label, text]) => (
        <button type="button" key={label} onClick={() => screen.type(text)}>
          {label}
        </button>
      ))}
    </div>
  );
}

function Tools({
  screen,
  viewOnly,
  searching,
  onSearch,
}: {
  screen: Screen;
  viewOnly: boolean;
  searching: boolean;
  onSearch: () => void;
}) {
  return (
    <>
      {viewOnly ? (
        <span class="chip" title="Your link lets you look: what you type is not sent">
          View only
        </span>
      ) : (
        <button
          type="button"
          aria-pressed={readOnly.value}
          aria-label="Read only"
          title="Keys and pastes are not sent while this is on"
          onClick={() => {
            readOnly.value = !readOnly.value;
          }}
        >
          <Icon name="lock" />
          <span class="read-only-word wide-only">Read only: {readOnly.value ? "on" : "off"}</span>
        </button>
      )}
      <IconButton icon="search" label="Search (Ctrl+Shift+F)" pressed={searching} onClick={onSearch} />
      <IconButton
        icon="copy"
        label="Copy the selection (Ctrl+Shift+C)"
        class="wide-only"
        onClick={() => void screen.copySelection()}
      />
      {!viewOnly && (
        <IconButton
          icon="paste"
          label="Paste (Ctrl+Shift+V)"
          onClick={() => void screen.pasteFromClipboard()}
        />
      )}
      <IconButton
        icon="minus"
        label={`Smaller text (now ${fontSize.value})`}
        onClick={() => changeFont(-1)}
      />
      <IconButton icon="plus" label={`Larger text (now ${fontSize.value})`} onClick={() => changeFont(1)} />
      <IconButton
        icon="eye"
        label="Screen reader support"
        class="wide-only"
        pressed={screenReader.value}
        onClick={() => {
          screenReader.value = !screenReader.value;
        }}
      />
    </>
  );
}

export function TerminalPanel({ addresses, alone }: { addresses: Addresses; alone: boolean }) {
  const screen = useMemo(() => new Screen(addresses), [addresses]);
  const host = useRef<HTMLDivElement>(null);
  const searching = useSignal(false);
  useEffect(() => {
    if (host.current) screen.attach(host.current);
    return () => screen.dispose();
  }, [screen]);
  const state = screen.link.state.value;
  const { word, tone } = stateWord(state);
  const Heading = alone ? "h1" : "h2";
  const search = (on: boolean) => {
    searching.value = on;
    if (!on) screen.focus();
  };
  return (
    <section
      class="terminal-panel"
      aria-label="Terminal"
      onKeyDown={(event) => {
        if (event.code !== "KeyF" || !((event.ctrlKey && event.shiftKey) || event.metaKey)) return;
        event.preventDefault();
        search(true);
      }}
    >
      <header class="bar">
        <Icon name="terminal" class="wide-only" />
        <Heading>Terminal</Heading>
        {alone && <BackToChat addresses={addresses} />}
        <span class={`chip ${tone}`} role="status">
          {word}
        </span>
        <span class="muted cut grow wide-only">{shownName(screen.title.value)}</span>
        <span class="grow phone-only" />
        <Tools
          screen={screen}
          viewOnly={addresses.viewOnly}
          searching={searching.value}
          onSearch={() => search(!searching.value)}
        />
        {alone && <ThemeButton />}
      </header>
      {alone && <ViewOnlyNotice addresses={addresses} />}
      <LinkNotice state={state} login={addresses.login()} onRetry={(wake) => screen.link.start(wake)} />
      {searching.value && <SearchBar screen={screen} onClose={() => search(false)} />}
      <div class="terminal-host" ref={host} />
      {!addresses.viewOnly && <PhoneKeys screen={screen} />}
      {screen.heldPaste.value !== null && <PasteGuard screen={screen} text={screen.heldPaste.value} />}
    </section>
  );
}
