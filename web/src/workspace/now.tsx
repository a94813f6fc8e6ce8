/** The line in the header that says what the model does, with a time that goes on; title and icon of the page with it. */
import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { shownName } from "../common/format";
import type { LiveView } from "../live/view";
import { NAME } from "../ui/brand";
import { iconFor, type Now, titleFor, wordsOf } from "./nowline";

const TONES = { working: "accent", waiting: "warn", idle: "", stopped: "" };

let plainIcon: string | null = null;

function showIcon(now: Now): void {
  const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
  if (!link) return;
  plainIcon ??= link.href;
  const wanted = iconFor(now) ?? plainIcon;
  if (link.href !== wanted) link.href = wanted;
}

/** Why the model waits for whoever looks at this page; empty if it does not. */
export function waitingFor(live: LiveView | null): string {
  if (!live) return "";
  if (live.popups.value.some((popup) => popup.type === "dialog")) return "Waiting for you: a page asks";
  if (!live.modelWaits.value) return "";
  return live.control.value === "yours"
    ? "Waiting for you: return control"
    : `Waiting for ${shownName(live.driver.value || "another person").slice(0, 40)}`;
}

/** `rest`: what the title of the page is without a state and without the name of the product. */
export function NowLine({ now, rest }: { now: ReadonlySignal<Now>; rest: ReadonlySignal<string> }) {
  const at = useSignal(Date.now());
  const { kind, text } = now.value;
  useEffect(() => {
    at.value = Date.now();
    const timer = setInterval(
      () => {
        at.value = Date.now();
      },
      kind === "working" ? 1_000 : 60_000,
    );
    return () => clearInterval(timer);
  }, [kind, now.value.since]);
  useEffect(() => showIcon(now.value), [kind]);
  useEffect(() => {
    document.title = titleFor(now.value, `${rest.value} · ${NAME}`);
  }, [kind, text, rest.value]);
  const words = shownName(wordsOf(now.value, at.value));
  return (
    <span class={`now-line cut ${TONES[kind]}`} title={words}>
      <span class={`now-dot ${kind}`} aria-hidden="true" />
      {words}
      {/* Told once for each state: a time that goes on would be read out each second. */}
      <span class="visually-hidden" role="status">
        {kind === "working" ? `Working: ${shownName(text)}` : kind === "waiting" ? shownName(text) : kind}
      </span>
    </span>
  );
}
