/** Every tool call as it happens. */
import { signal, useSignal } from "@preact/signals";
import { Backoff } from "../common/backoff";
import { writeClipboard } from "../common/clipboard";
import { ago, seconds, shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { chatPath } from "../common/sandbox";
import { Glances, stir } from "../common/stirring";
import { Icon } from "../ui/icon";
import { Empty, IconButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { apply, asMarkdown, type Call, codeOf, gist, options, parseEvent, stateOf, task } from "./calls";
import { PutBack } from "./change";
import { Diff } from "./diff";
import { useFollow } from "./scrolling";

/** The tools that can start or end something that goes on when they are done. */
const STARTERS = new Set(["bash_tool", "sub_agent"]);

export class Activity {
  readonly calls = signal<readonly Call[]>([]);
  readonly state = signal<"connecting" | "open" | "lost" | "none">("connecting");
  #source: EventSource | null = null;
  /** The service that was last heard. */
  #service = "";
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #pauses = new Backoff(1_000, 30_000);
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
      this.#pauses.reset();
      if (this.state.value === "lost") {
        stir();
        this.onEnd(); // what happened meanwhile was not seen
      }
      this.state.value = "open";
    };
    source.onmessage = (message: MessageEvent<string>) => {
      const event = parseEvent(message.data);
      if (!event) return;
      if (event.type === "service") {
        if (event.id === this.#service) return;
        this.#service = event.id;
      }
      this.calls.value = apply(this.calls.value, event);
      if (event.type === "end" || event.type === "undo") this.onEnd();
      if (event.type === "call" ? STARTERS.has(event.tool) : event.type === "end") this.#stirs.ask();
    };
    source.onerror = () => {
      if (this.state.value === "open") stir();
      // A lost connection comes back by itself, from the last id on. An answer that is no stream ends it for good:
      // a proxy gives one while the service is started again.
      const over = source.readyState === EventSource.CLOSED;
      if (this.state.value === "connecting" && over) this.state.value = "none";
      else if (this.state.value !== "none") this.state.value = "lost";
      if (over) this.#again = setTimeout(() => this.start(), this.#pauses.next());
    };
  }

  stop(): void {
    clearTimeout(this.#again);
    this.#source?.close();
    this.#stirs.stop();
  }
}

const TONES = { running: "accent", done: "ok", failed: "bad" };

const shown = (text: string) => text.split("\n").map(shownName).join("\n");

/** What a call printed so far: the newest in sight, unless the person scrolled away from it. */
function Output({ text }: { text: string }) {
  const follow = useFollow<HTMLPreElement>(text);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <pre {...follow} class="output" role="group" tabIndex={0} aria-label="Output">
      {shown(text)}
    </pre>
  );
}

interface Shown {
  call: Call;
  addresses: Addresses;
  onOpen: (path: string) => void;
}

function Body({ call, addresses, onOpen }: Shown) {
  const path = typeof call.arguments.path === "string" ? chatPath(call.arguments.path) : null;
  const silent = call.state !== "running" && !call.output && !call.result && !call.notes.length;
  return (
    <div class="call-body">
      {task(call) && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
        <pre class="task" role="group" tabIndex={0} aria-label="What was asked for">
          {shown(task(call))}
        </pre>
      )}
      {options(call).map((option) => (
        <code key={option} class="cut">
          {shownName(option)}
        </code>
      ))}
      <Diff call={call} />
      {call.output && <Output text={call.output} />}
      {call.result && <Output text={call.result} />}
      {call.notes.map((note, i) => (
        <p key={i} class={`call-note ${call.state === "failed" ? "bad" : ""}`}>
          {shown(note)}
        </p>
      ))}
      {silent && <p class="call-note muted">It printed nothing.</p>}
      <PutBack call={call} addresses={addresses} />
      {path && (
        <button type="button" onClick={() => onOpen(path)}>
          Open the file
        </button>
      )}
    </div>
  );
}

function CallCard(props: Shown & { open: boolean }) {
  const { call } = props;
  const opened = useSignal<boolean | null>(null);
  const expanded = opened.value ?? (props.open || call.state === "running");
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
        <span class={`chip ${TONES[call.state]}`}>{stateOf(call)}</span>
        {call.undone && <span class="chip warn">undone</span>}
        <strong>{call.tool}</strong>
        <span class="cut grow">{shownName(call.description || gist(call))}</span>
        <span class="muted">
          {codeOf(call) && `${codeOf(call)} · `}
          {call.seconds !== null ? seconds(call.seconds) : ago(call.at)}
        </span>
      </button>
      {expanded && <Body call={call} addresses={props.addresses} onOpen={props.onOpen} />}
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
  const calls = activity.calls.value;
  const follow = useFollow<HTMLDivElement>(calls);
  const wanted = filter.value.toLowerCase();
  const listed = calls.filter((c) =>
    `${c.tool} ${c.description} ${c.note ?? ""} ${task(c)}`.toLowerCase().includes(wanted),
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
        <a
          class="button plain"
          href={props.addresses.replay()}
          download
          aria-label="Download replay"
          title="Download replay"
        >
          <Icon name="download" />
        </a>
        <IconButton
          icon="copy"
          label="Copy as Markdown"
          disabled={!calls.length}
          onClick={() => void copy()}
        />
      </header>
      <div class="panel-body" {...follow}>
        {calls.every((call) => call.note !== undefined) ? (
          <Empty
            icon="activity"
            title={activity.state.value === "none" ? "No activity to show" : "No calls yet"}
          >
            <p>What the model does in this sandbox appears here as it happens.</p>
          </Empty>
        ) : (
          <p class="calls-kept muted">The latest calls, as the journal has them.</p>
        )}
        <div role="log" aria-label="Tool calls">
          <ul class="calls">
            {listed.map((call) =>
              call.note === undefined ? (
                <CallCard
                  key={call.id}
                  call={call}
                  open={all.value}
                  addresses={props.addresses}
                  onOpen={props.onOpen}
                />
              ) : (
                <li key={call.id} class="event muted">
                  <span class="cut grow">{shownName(call.note)}</span> {ago(call.at)}
                </li>
              ),
            )}
          </ul>
        </div>
      </div>
    </section>
  );
}
