/** What the demo does now, over the workspace in which it plays; at its end, the way to take over. */
import { effect, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Addresses } from "../common/page";
import { HomeFeed } from "../home/feed";
import { wantControl } from "../live/wanted";
import { Icon } from "../ui/icon";
import { panes } from "./layout";
import { visitPanel } from "./place";

/** Whether this page was opened by the button of the home page. */
export const isDemo = (search: string = document.location.search): boolean =>
  new URLSearchParams(search).get("demo") === "1";

export function DemoBar({ addresses }: { addresses: Addresses }) {
  const feed = useMemo(() => new HomeFeed(addresses.root), [addresses]);
  const own = useRef<HTMLButtonElement>(null);
  const taken = useSignal(false);
  useEffect(() => {
    const before = panes.value;
    // What the script does, and beside it what it uses.
    panes.value = ["activity", "now"];
    const stop = feed.start();
    const restore = () => {
      panes.value = before;
    };
    addEventListener("pagehide", restore);
    // The button that is wanted next is under the fingers of whoever uses the keyboard.
    const focusing = effect(() => {
      if (feed.home.value.demo?.state === "over") requestAnimationFrame(() => own.current?.focus());
    });
    return () => {
      focusing();
      stop();
      removeEventListener("pagehide", restore);
      restore();
    };
  }, [feed]);
  const demo = feed.home.value.demo;
  const home = addresses.root.href;
  if (taken.value) return null;
  if (demo?.state === "over") {
    return (
      <div class="notice accent demo-bar" role="status">
        <span class="grow">
          <strong>Your turn.</strong>{" "}
          <span class="muted">The script is over; files, page and browser are still there.</span>
        </span>
        <a class="button" href={home}>
          Connect your AI
        </a>
        <button
          type="button"
          class="primary"
          ref={own}
          onClick={() => {
            taken.value = true;
            visitPanel("browser");
            wantControl();
          }}
        >
          <Icon name="keyboard" />
          Take control
        </button>
      </div>
    );
  }
  if (demo?.state === "failed") {
    return (
      <div class="notice bad demo-bar" role="alert">
        <span class="grow">The demo stopped. {demo.says}</span>
        <a class="button" href={home}>
          Back to the start
        </a>
      </div>
    );
  }
  return (
    <div class="notice demo-bar" role="status">
      <span class="grow">
        <strong>Demo</strong>{" "}
        {demo?.step ? `${demo.step} of ${demo.steps}: ${demo.says}` : "The computer is being started…"}
      </span>
      <progress max={demo?.steps || 1} value={demo?.step ?? 0} aria-label="How far the demo is" />
    </div>
  );
}
