/** One call: a line that says what was done, and all of it when it is opened. */
import { useEffect, useState } from "preact/hooks";
import { seconds, shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { chatPath } from "../common/sandbox";
import { Icon } from "../ui/icon";
import { type Call, options, type Piece, task } from "../workspace/calls";
import { PutBack } from "../workspace/change";
import { AgentRun } from "./agent";
import { CodeBlock, shown } from "./code";
import { Counts, Diff, useChange } from "./diff";
import { Output } from "./output";
import { Picture, ResultView } from "./result";
import type { Result } from "./results";
import { usageWords } from "./steps";
import { baseName, beside, standing, timeOfDay, titleOf } from "./words";

const TONES = { running: "accent", done: "ok", failed: "bad" };

export interface CardProps {
  call: Call;
  open: boolean;
  inner: boolean;
  results: readonly Result[];
  addresses: Addresses;
  onToggle: () => void;
  onOpen: (path: string) => void;
}

/** How long it runs already. */
function Elapsed({ since }: { since: number }) {
  const [now, tick] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => tick(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const past = Math.max(0, Math.floor(now / 1000 - since));
  return <>{`${Math.floor(past / 60)}:${String(past % 60).padStart(2, "0")}`}</>;
}

const whole = (text: string): readonly Piece[] => [{ from: 0, text }];

function Asked({ call }: { call: Call }) {
  const text = task(call);
  if (!text) return null;
  const [label, copies] =
    call.tool === "bash_tool"
      ? ["What was asked for", "Copy the command"]
      : call.tool === "sub_agent"
        ? ["What was asked for", "Copy the task"]
        : ["What was asked for", "Copy the path"];
  return <CodeBlock text={text} label={label} copies={copies} />;
}

function Body({ call, change, ...props }: CardProps & { change: ReturnType<typeof useChange> }) {
  const path = typeof call.arguments.path === "string" ? chatPath(call.arguments.path) : null;
  const agent = call.steps.length > 0 || call.usage !== null;
  const silent =
    call.state !== "running" && !call.output && !call.result && !call.notes.length && !call.pictures.length;
  return (
    <div class="call-body">
      <Asked call={call} />
      {options(call).map((option) => (
        <code key={option} class="cut">
          {shownName(option)}
        </code>
      ))}
      <Diff call={call} change={change} addresses={props.addresses} />
      {agent ? <AgentRun call={call} /> : call.output && <Output id={call.id} pieces={call.pieces} />}
      {call.result && !call.pictures.length && (
        <Output
          id={`${call.id} result`}
          pieces={whole(call.result)}
          label={agent ? "Answer of the agent" : "Answer"}
        />
      )}
      {call.pictures.map((hash) => (
        <Picture
          key={hash}
          src={props.addresses.picture(hash)}
          name={baseName(call.arguments.path ?? "picture")}
        />
      ))}
      {call.notes.map((note, i) => (
        <p key={i} class={`call-note ${call.state === "failed" ? "bad" : ""}`}>
          {shown(note)}
        </p>
      ))}
      {silent && <p class="call-note muted">It printed nothing.</p>}
      <PutBack call={call} addresses={props.addresses} />
      {path && (
        <button type="button" onClick={() => props.onOpen(path)}>
          Open the file
        </button>
      )}
    </div>
  );
}

function Head({ call, open, change, ...props }: CardProps & { change: ReturnType<typeof useChange> }) {
  const title = titleOf(call);
  const [thumb] = call.pictures;
  const notes = beside(call);
  return (
    <button type="button" class="plain call-head row-head" aria-expanded={open} onClick={props.onToggle}>
      <Icon name={title.icon} />
      <span class="call-title">
        <span class="call-line">
          <strong>{shownName(title.verb)}</strong> <span class="call-object">{shownName(title.object)}</span>{" "}
          {change && call.state === "done" && <Counts call={call} change={change} />}
          {call.undone && <span class="chip warn">undone</span>}
        </span>
        {title.detail && <code class="call-detail">{shownName(title.detail)}</code>}
        {call.usage && <span class="call-detail">{usageWords(call.usage).join(" · ")}</span>}
        {notes.map((note, i) => (
          <span key={i} class={`call-beside ${note.startsWith("Opened port") ? "muted" : ""}`}>
            {shownName(note)}
          </span>
        ))}
      </span>
      {thumb && <img class="thumb" src={props.addresses.picture(thumb)} alt="" loading="lazy" />}
      <span class="call-facts">
        <span class={`chip ${TONES[call.state]}`}>{standing(call)}</span>
        <span class="muted">
          {call.seconds !== null
            ? seconds(call.seconds)
            : call.state === "running" && <Elapsed since={call.at} />}
          {" · "}
          <time dateTime={new Date(call.at * 1000).toISOString()}>{timeOfDay(call.at)}</time>
        </span>
      </span>
    </button>
  );
}

export function CallCard(props: CardProps) {
  const change = useChange(props.call);
  return (
    <div class={`call ${props.call.state} ${props.inner ? "inner" : ""}`}>
      <Head {...props} change={change} />
      {props.open && <Body {...props} change={change} />}
      {props.results.map((result) => (
        <ResultView key={result.path} result={result} addresses={props.addresses} onOpen={props.onOpen} />
      ))}
    </div>
  );
}
