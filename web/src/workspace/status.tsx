/** What runs in the sandbox, in words. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { getJson } from "../common/http";
import type { Addresses } from "../common/page";

const EVERY_MS = 15_000;

interface State {
  browser: boolean | null;
  terminal: boolean | null;
  agents: number | null;
}

async function look(addresses: Addresses): Promise<State> {
  const quiet = <T,>(url: string): Promise<T | null> => getJson<T>(url).catch(() => null);
  const [browser, terminal, agents] = await Promise.all([
    quiet<{ running: boolean }>(addresses.browser("status")),
    quiet<{ running: boolean }>(addresses.terminal("status")),
    quiet<{ processes: unknown[] }>(addresses.terminal("processes")),
  ]);
  return {
    browser: browser?.running ?? null,
    terminal: terminal?.running ?? null,
    agents: agents?.processes.length ?? null,
  };
}

export function StatusChips({ addresses }: { addresses: Addresses }) {
  const state = useSignal<State>({ browser: null, terminal: null, agents: null });
  useEffect(() => {
    const update = async () => {
      if (document.visibilityState === "visible") state.value = await look(addresses);
    };
    void update();
    const timer = setInterval(() => void update(), EVERY_MS);
    return () => clearInterval(timer);
  }, [addresses, state]);
  const { browser, terminal, agents } = state.value;
  const chip = (name: string, on: boolean | null) =>
    on === null ? null : <span class={`chip ${on ? "ok" : ""}`}>{`${name} ${on ? "on" : "off"}`}</span>;
  return (
    <div class="chips wide-only" role="status" aria-label="What runs in the sandbox">
      {chip("Browser", browser)}
      {chip("Terminal", terminal)}
      {agents !== null && (
        <span class={`chip ${agents ? "ok" : ""}`}>{agents === 1 ? "1 agent" : `${agents} agents`}</span>
      )}
    </div>
  );
}
