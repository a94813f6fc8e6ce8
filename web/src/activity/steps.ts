/** The steps of a coding agent as a tree, and its figures in words. */
import { shownName } from "../common/format";
import type { StepEvent, UsageEvent } from "../workspace/events.generated";
import { dollars, tokens } from "./words";

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
