/** How to connect a client: the address, a text to copy for each client, and whether one has come. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { writeClipboard } from "../common/clipboard";
import { ago, shownName } from "../common/format";
import { getJson, request } from "../common/http";
import { isOneOf, stored } from "../common/stored";
import { Icon } from "../ui/icon";
import { toast } from "../ui/toast";
import { CLIENTS, type ClientName, SNIPPETS } from "./clients";
import type { ClientSeen, Connection, ShownKey } from "./home.generated";

const chosen = stored<ClientName>("client", "claude-code", isOneOf(...CLIENTS));
const HIDDEN_KEY = "••••••••";
const NO_KEY = "YOUR_KEY";

/** The key is fetched when a person wants to see or copy it, and is kept by this page only. */
class Key {
  #known: Promise<string> | null = null;
  constructor(
    private readonly root: URL,
    private readonly knows: boolean,
  ) {}

  get shown(): string {
    return this.knows ? HIDDEN_KEY : NO_KEY;
  }

  read(): Promise<string> {
    if (!this.knows) return Promise.resolve(NO_KEY);
    this.#known ??= this.#fetch().catch((error: unknown) => {
      this.#known = null;
      throw error;
    });
    return this.#known;
  }

  async #fetch(): Promise<string> {
    const answer = await request(new URL("api/home/key", this.root).href, {
      method: "POST",
      cache: "no-store",
    });
    return ((await answer.json()) as ShownKey).key;
  }
}

function CopyButton({ label, text }: { label: string; text: () => Promise<string> }) {
  const done = useSignal(false);
  useEffect(() => {
    if (!done.value) return undefined;
    const timer = setTimeout(() => {
      done.value = false;
    }, 2_000);
    return () => clearTimeout(timer);
  }, [done.value, done]);
  return (
    <button
      type="button"
      aria-label={done.value ? "Copied" : label}
      onClick={() => {
        text()
          .then(writeClipboard)
          .then(() => {
            done.value = true;
          })
          .catch((error: unknown) =>
            toast(error instanceof Error ? error.message : "It could not be copied."),
          );
      }}
    >
      <Icon name="copy" />
      <span aria-hidden="true">{done.value ? "Copied" : "Copy"}</span>
    </button>
  );
}

function Tabs() {
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && CLIENTS[(CLIENTS.indexOf(chosen.value) + step + CLIENTS.length) % CLIENTS.length];
    if (!next) return;
    event.preventDefault();
    chosen.value = next;
    document.getElementById(`client-${next}`)?.focus();
  };
  return (
    <div class="client-tabs" role="tablist" aria-label="Client" onKeyDown={move}>
      {CLIENTS.map((name) => (
        <button
          type="button"
          key={name}
          role="tab"
          id={`client-${name}`}
          class="plain"
          aria-selected={name === chosen.value}
          aria-controls="client-panel"
          tabIndex={name === chosen.value ? 0 : -1}
          onClick={() => {
            chosen.value = name;
          }}
        >
          {SNIPPETS[name].title}
        </button>
      ))}
    </div>
  );
}

function SnippetPanel({ connection, keep }: { connection: Connection; keep: Key }) {
  const visible = useSignal("");
  const { how, text } = SNIPPETS[chosen.value];
  const { url, locked } = connection;
  const shown = locked ? visible.value || keep.shown : "";
  return (
    <div class="client-panel" role="tabpanel" id="client-panel" aria-labelledby={`client-${chosen.value}`}>
      <div class="client-how">
        <p class="grow">{how}</p>
        {locked && connection.knows_key && (
          <button
            type="button"
            aria-pressed={visible.value !== ""}
            onClick={() => {
              if (visible.value) visible.value = "";
              else
                keep
                  .read()
                  .then((key) => {
                    visible.value = key;
                  })
                  .catch((error: unknown) =>
                    toast(error instanceof Error ? error.message : "It could not be read."),
                  );
            }}
          >
            <Icon name="eye" />
            {visible.value ? "Hide the key" : "Show the key"}
          </button>
        )}
      </div>
      <div class="snippet">
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a wide text is scrolled by the keyboard */}
        <pre tabIndex={0}>{text({ url, key: shown })}</pre>
        <CopyButton
          label={`Copy the text for ${SNIPPETS[chosen.value].title}`}
          text={async () => text({ url, key: locked ? await keep.read() : "" })}
        />
      </div>
      {locked && !connection.knows_key && (
        <p class="muted">Put your own key in place of {NO_KEY}: the service keeps only a digest of it.</p>
      )}
    </div>
  );
}

/** Turns green by itself when the first client comes. */
export function ClientLine({ client, root }: { client: ClientSeen | null | undefined; root: URL }) {
  if (!client) {
    return (
      <p class="client-line" role="status">
        <span class="chip waiting">waiting for the first client…</span>
      </p>
    );
  }
  const way = new URL(`preview/${encodeURIComponent(client.chat)}/`, root).href;
  return (
    <p class="client-line" role="status">
      <span class="chip ok">
        {client.name ? `${shownName(client.name)} is connected` : "A client is connected"}
      </span>
      <a href={way}>Watch the chat {shownName(client.chat)}</a>
      <span class="muted">{ago(client.at)}</span>
    </p>
  );
}

export function Connect({ root, client }: { root: URL; client: ClientSeen | null | undefined }) {
  const connection = useSignal<Connection | null>(null);
  const problem = useSignal("");
  const keep = useSignal<Key | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    getJson<Connection>(new URL("api/home/connection", root).href, stop.signal)
      .then((found) => {
        keep.value = new Key(root, found.knows_key);
        connection.value = found;
      })
      .catch((error: unknown) => {
        if (!stop.signal.aborted)
          problem.value = error instanceof Error ? error.message : "It could not be read.";
      });
    return () => stop.abort();
  }, [root, connection, keep, problem]);
  const found = connection.value;
  return (
    <section class="card connect" aria-labelledby="connect-title">
      <div class="connect-head">
        <h2 id="connect-title">Connect your AI</h2>
        <ClientLine client={client} root={root} />
      </div>
      {problem.value && (
        <p class="notice bad" role="alert">
          {problem.value}
        </p>
      )}
      {found && keep.value && (
        <>
          <div class="mcp-url">
            <span class="muted">MCP URL</span>
            <code class="grow">{found.url}</code>
            <CopyButton label="Copy the MCP URL" text={() => Promise.resolve(found.url)} />
          </div>
          <Tabs />
          <SnippetPanel connection={found} keep={keep.value} />
        </>
      )}
    </section>
  );
}
