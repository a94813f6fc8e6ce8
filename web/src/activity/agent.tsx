/** The run of a coding agent: what it said and did, with the runs that it started itself inside. */
import { shownName } from "../common/format";
import { Icon } from "../ui/icon";
import type { Call } from "../workspace/calls";
import type { StepEvent, UsageEvent } from "../workspace/events.generated";
import { shown } from "./code";
import { dollars, timeOfDay, tokens } from "./words";

export interface Node {
  step: StepEvent;
  result: StepEvent | null;
  children: Node[];
}

/** Steps as a tree: a result belongs to its tool, and what an inner agent does to the tool that runs it. */
export function treeOf(steps: readonly StepEvent[]): Node[] {
  const top: Node[] = [];
  const tools = new Map<string, Node>();
  let last: Node | null = null;
  for (const step of steps) {
    if (step.kind === "result") {
      const tool: Node | null | undefined = step.key ? tools.get(step.key) : last;
      if (tool && !tool.result) {
        tool.result = step;
        continue;
      }
    }
    const node: Node = { step, result: null, children: [] };
    // A key that a hostile agent gives twice, or to itself, must make no circle.
    const parent = step.parent && step.parent !== step.key ? tools.get(step.parent) : undefined;
    (parent?.children ?? top).push(node);
    if (step.kind === "tool") {
      last = node;
      if (step.key && !tools.has(step.key)) tools.set(step.key, node);
    }
  }
  return top;
}

export function usageWords(usage: UsageEvent): string[] {
  const words = [`${usage.turns} ${usage.turns === 1 ? "turn" : "turns"}`];
  if (usage.input_tokens || usage.output_tokens)
    words.push(`${tokens(usage.input_tokens)} tokens in, ${tokens(usage.output_tokens)} out`);
  if (usage.dollars !== null) words.push(dollars(usage.dollars));
  if (usage.model) words.unshift(shownName(usage.model));
  return words;
}

const toolCount = (nodes: readonly Node[]): number =>
  nodes.reduce((sum, node) => sum + Number(node.step.kind === "tool") + toolCount(node.children), 0);

function Tool({ node, depth }: { node: Node; depth: number }) {
  const { step, result } = node;
  const inner = toolCount(node.children);
  return (
    <details class="step tool" open={node.children.length > 0 || result?.error === true}>
      <summary>
        <Icon name="chevron" />
        <strong>{shownName(step.tool)}</strong>
        <code class="cut grow">{shownName(step.text)}</code>
        {inner > 0 && <span class="muted">{`${inner} inside`}</span>}
        {result?.error && <span class="chip bad">failed</span>}
        <time class="muted">{timeOfDay(step.at)}</time>
      </summary>
      {step.text && <pre class="task">{shown(step.text)}</pre>}
      {node.children.length > 0 && (
        <Nodes nodes={node.children} depth={depth + 1} label={`Steps of ${step.tool}`} />
      )}
      {result ? (
        <pre class="output">{shown(result.text) || "(nothing)"}</pre>
      ) : (
        <p class="muted">No result yet.</p>
      )}
    </details>
  );
}

const DEEPEST = 6;

function Nodes({ nodes, depth, label }: { nodes: readonly Node[]; depth: number; label: string }) {
  return (
    <ol class={`steps ${depth > DEEPEST ? "flat" : ""}`} aria-label={shownName(label)}>
      {nodes.map((node) => (
        <li key={node.step.number} class={node.step.kind}>
          {node.step.kind === "tool" ? (
            <Tool node={node} depth={depth} />
          ) : node.step.kind === "turn" ? (
            <span class="muted">{shownName(node.step.text.replace(/^\[|\]$/g, ""))}</span>
          ) : (
            <p>{shown(node.step.text)}</p>
          )}
        </li>
      ))}
    </ol>
  );
}

export function AgentRun({ call }: { call: Call }) {
  const first = call.steps[0]?.number ?? 0;
  const nodes = treeOf(call.steps);
  return (
    <div class="agent-run">
      {call.usage && <p class="agent-usage">{usageWords(call.usage).join(" · ")}</p>}
      {first > 0 && (
        <div class="cut-mark">{`${first.toLocaleString("en")} earlier steps are left out here`}</div>
      )}
      <Nodes nodes={nodes} depth={1} label="Steps of the agent" />
    </div>
  );
}
