/** A part of the page outside the live view asks it to take control, as a press of its own button does. */
import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { LiveView } from "./view";

const wanted = signal(false);

export function wantControl(): void {
  wanted.value = true;
}

/** Takes control once it is asked for and the connection is open. */
export function useWantedControl(view: LiveView, name: () => string): void {
  useEffect(
    () =>
      effect(() => {
        if (!wanted.value || view.link.state.value.kind !== "open") return;
        if (view.control.value === "watching") view.take(name());
        if (view.control.value === "yours" || view.control.value === "theirs") wanted.value = false;
      }),
    [view, name],
  );
}
