/** Which panels are on the screen, kept for the person in this browser. */
import { computed, signal } from "@preact/signals";
import { isNumber, stored } from "../common/stored";
import type { IconName } from "../ui/icon";

export const PANELS = ["now", "files", "browser", "ports", "terminal", "agents", "activity"] as const;
export type PanelName = (typeof PANELS)[number];

export const PANEL_WORDS: Record<PanelName, { title: string; icon: IconName }> = {
  now: { title: "Follow", icon: "eye" },
  activity: { title: "Activity", icon: "activity" },
  files: { title: "Files", icon: "files" },
  browser: { title: "Browser", icon: "browser" },
  ports: { title: "Ports", icon: "server" },
  terminal: { title: "Terminal", icon: "terminal" },
  agents: { title: "Agents", icon: "agents" },
};

const isPanes = (value: unknown): value is PanelName[] =>
  Array.isArray(value) &&
  (value.length === 1 || value.length === 2) &&
  new Set(value).size === value.length &&
  value.every((v) => (PANELS as readonly unknown[]).includes(v));

/** Who comes for the first time sees what the model does, and beside it what it uses now. */
const FIRST: PanelName[] = ["activity", "now"];

export const panes = stored<PanelName[]>("panes", FIRST, isPanes);
/** Share of the first of two panes. */
export const share = stored("share", 0.5, isNumber);
export const front = signal(Math.max(0, panes.peek().indexOf("now")));
/** Whether a pane shows what the model uses; a panel that a person chooses takes its place. */
export const following = computed(() => panes.value.includes("now"));

/**
 * A panel is on the screen once: choosing one that is already there only brings it to the front. Another one takes the place
 * of the pane that follows the model, or else of the one in front.
 */
export function choose(
  all: readonly PanelName[],
  at: number,
  name: PanelName,
): { panes: PanelName[]; front: number } {
  const there = all.indexOf(name);
  if (there >= 0) return { panes: [...all], front: there };
  const follows = all.indexOf("now");
  const index = follows >= 0 ? follows : Math.min(at, all.length - 1);
  return { panes: all.map((p, i) => (i === index ? name : p)), front: index };
}

export function showPanel(name: PanelName): void {
  const next = choose(panes.value, front.value, name);
  panes.value = next.panes;
  front.value = next.front;
}

/** Shows again what the model does, and what it uses. */
export function followModel(): void {
  panes.value = [...FIRST];
  front.value = 1;
}

export function toggleSplit(): void {
  if (panes.value.length === 2) {
    panes.value = [panes.value[front.value] ?? "files"];
    front.value = 0;
    return;
  }
  const other = PANELS.find((p) => !panes.value.includes(p)) ?? "activity";
  panes.value = [...panes.value, other];
  front.value = 1;
}

export function closePane(index: number): void {
  panes.value = panes.value.filter((_, i) => i !== index);
  front.value = 0;
}

export function moveSplit(to: number): void {
  share.value = Math.min(0.8, Math.max(0.2, to));
}
