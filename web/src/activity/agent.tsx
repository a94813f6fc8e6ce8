/** The run of a coding agent: what it said and did, with the runs that it started itself inside. */
import { shownName } from "../common/format";
import { Icon } from "../ui/icon";
import type { Call } from "../workspace/calls";
import { shown } from "./code";
import { type Node, treeOf, usageWords } from "./steps";
import { timeOfDay } from "./words";

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
