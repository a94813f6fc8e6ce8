/** Dark, light, or as the system says. */
import { computed, effect, signal } from "@preact/signals";
import { isOneOf, stored } from "./stored";

export type Theme = "auto" | "dark" | "light";

export const theme = stored<Theme>("theme", "auto", isOneOf("auto", "dark", "light"));

/** What the page around a card has: it counts there until the person chooses. */
const isFramed = typeof window !== "undefined" && window.parent !== window;
const around = signal(isFramed ? new URLSearchParams(location.search).get("theme") : null);
const chosen = computed<Theme>(() =>
  around.value === "dark" || around.value === "light" ? around.value : theme.value,
);

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => {
  systemDark.value = system.matches;
});

export const dark = computed(() => (chosen.value === "auto" ? systemDark.value : chosen.value === "dark"));

export function followTheme(): void {
  effect(() => {
    document.documentElement.dataset.theme = chosen.value;
  });
}

export function nextTheme(): void {
  const next = dark.value ? "light" : "dark";
  around.value = null;
  theme.value = next;
}
