/** Every tool call as it happens. */
import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { writeClipboard } from "../common/clipboard";
import { ago, seconds, shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { chatPath } from "../common/sandbox";
import { Glances, stir } from "../common/stirring";
import { Empty, IconButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { apply, asMarkdown, type Call, diffOf, gist, parseEvent } from "./calls";

/** The tools that can start or end something that goes on when they are done. */
const STARTERS = new Set(["bash_tool", "sub_agent"]);

export class Activity {
  readonly calls = signal<readonly Call[]>([]);
  readonly state = signal<"connecting" | "open" | "lost" | "none">("connecting");
  #source: EventSource | null = null;
  /** A busy model must not make the page ask without end. */
  readonly #stirs = new Glances(stir, 5_000);

  constructor(
    private readonly url: string,
    private readonly onEnd: () => void,
  ) {}

  start(): void {
    const source = new EventSource(this.url);
    this.#source = source;
    source.onopen = () => {
      if (this.state.value === "lost") stir();
      this.state.value = "open";
    };
    source.onmessage = (message: MessageEvent<string>) => {
      const event = parseEvent(message.data);
      if (!event) return;
      this.calls.value = apply(this.calls.value, event);
      if (event.type === "end") this.onEnd();
      if (event.type === "call" ? STARTERS.has(event.tool) : event.type === "end") this.#stirs.ask();
    };
    // A refusal closes the stream for good; a lost connection comes back by itself, from the last id on.
    source.onerror = () => {
      if (this.state.value === "open") stir();
      this.state.value = source.readyState === EventSource.CLOSED ? "none" : "lost";
    };
  }

  stop(): void {
    this.#source?.close();
    this.#stirs.stop();
  }
}

const WORDS = { running: "running", done: "done", failed: "failed" };
const TONES = { running: "accent", done: "ok", failed: "bad" };

function Edit({ call }: { call: Call }) {
  const before = call.arguments.old_str;
  const after = call.arguments.new_str ?? call.arguments.content;
  if (typeof after !== "string") return null;
  const lines = diffOf(typeof before === "string" ? before : "", after).slice(0, 400);
  return (
    <pre class="diff">
      {lines.map((line, i) => (
        <span key={i} class={line.sign === "+" ? "added" : line.sign === "-" ? "removed" : ""}>
          {`${line.sign} ${shownName(line.text)}\n`}
        </span>
      ))}
    </pre>
  );
}

function CallCard(props: {
  call: Call;
  all: readonly Call[];
  open: boolean;
  onOpen: (path: string) => void;
}) {
  const { call, all } = props;
  const opened = useSignal<boolean | null>(null);
  const expanded = opened.value ?? (props.open || call.state === "running");
  const children = all.filter((c) => c.parent === call.id);
  const path = typeof call.arguments.path === "string" ? chatPath(call.arguments.path) : null;
  const output = call.output.split("\n").map(shownName).join("\n");
  return (
    <li class="call">
      <button
        type="button"
        class="plain call-head"
        aria-expanded={expanded}
        onClick={() => {
          opened.value = !expanded;
        }}
      >
        <span class={`chip ${TONES[call.state]}`}>{WORDS[call.state]}</span>
        <strong>{call.tool}</strong>
        <span class="cut grow">{shownName(call.description || gist(call))}</span>
        <span class="muted">
          {call.exitCode !== null && call.exitCode !== 0 && `exit ${call.exitCode} · `}
          {call.seconds !== null ? seconds(call.seconds) : ago(call.at)}
        </span>
      </button>
      {expanded && (
        <div class="call-body">
          {gist(call) && <code class="cut">{shownName(gist(call))}</code>}
          <Edit call={call} />
          {output && <pre>{output}</pre>}
          {path && (
            <button type="button" onClick={() => props.onOpen(path)}>
              Open the file
            </button>
          )}
        </div>
      )}
      {children.length > 0 && (
        <ul class="calls nested">
          {children.map((child) => (
            <CallCard {...props} key={child.id} call={child} />
          ))}
        </ul>
      )}
    </li>
  );
}

export function ActivityPanel(props: {
  activity: Activity;
  addresses: Addresses;
  onOpen: (path: string) => void;
}) {
  const { activity } = props;
  const filter = useSignal("");
  const all = useSignal(false);
  const end = useRef<HTMLDivElement>(null);
  const calls = activity.calls.value;
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [calls.length]);
  const wanted = filter.value.toLowerCase();
  const shown = calls.filter(
    (c) => !c.parent && `${c.tool} ${c.description} ${gist(c)}`.toLowerCase().includes(wanted),
  );
  const copy = () =>
    writeClipboard(asMarkdown(calls)).then(
      () => toast("Copied as Markdown."),
      () => toast("This browser refused to copy."),
    );
  return (
    <section class="panel" aria-label="Activity">
      <header class="bar">
        <h2>Activity</h2>
        {activity.state.value === "lost" && <span class="chip warn">Reconnecting</span>}
        <span class="grow" />
        <input
          type="search"
          class="bar-filter"
          placeholder="Filter"
          aria-label="Filter calls"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
        <button
          type="button"
          aria-pressed={all.value}
          onClick={() => {
            all.value = !all.value;
          }}
        >
          Expand all
        </button>
        <IconButton
          icon="copy"
          label="Copy as Markdown"
          disabled={!calls.length}
          onClick={() => void copy()}
        />
      </header>
      <div class="panel-body">
        {calls.length === 0 ? (
          <Empty
            icon="activity"
            title={
              activity.state.value === "none" ? "No activity to show" : "No calls since the service started"
            }
          >
            <p>
              What the model does in this sandbox appears here as it happens. Calls from before the last start
              of the service are not kept; the files are.
            </p>
          </Empty>
        ) : (
          <p class="calls-kept muted">The latest calls since the last start of the service.</p>
        )}
        <ul class="calls" role="log" aria-label="Tool calls">
          {shown.map((call) => (
            <CallCard key={call.id} call={call} all={calls} open={all.value} onOpen={props.onOpen} />
          ))}
        </ul>
        <div ref={end} />
      </div>
    </section>
  );
}
