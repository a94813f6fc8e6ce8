/** Dark, light, or as the system says. */
import { computed, effect, signal } from "@preact/signals";
import { isOneOf, stored } from "./stored";

export type Theme = "auto" | "dark" | "light";

export const theme = stored<Theme>("theme", "auto", isOneOf("auto", "dark", "light"));

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => {
  systemDark.value = system.matches;
});

export const dark = computed(() => (theme.value === "auto" ? systemDark.value : theme.value === "dark"));

export function followTheme(): void {
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
  });
}

export function nextTheme(): void {
  theme.value = dark.value ? "light" : "dark";
}
