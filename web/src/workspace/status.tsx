/** What runs in the sandbox, in words. */
import { effect, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { BrowserStatus, ProcessList, TerminalStatus } from "../common/api.generated";
import { getJson, HttpError } from "../common/http";
import type { Addresses } from "../common/page";
import { Glances, stirrings } from "../common/stirring";
import type { Awake } from "./awake";
import type { Ports } from "./ports";

const EVERY_MS = 15_000;
/** What a stirring starts may take a moment to come up: a second look follows the first. */
const GAP_MS = 1_000;

interface State {
  browser: boolean | null;
  terminal: boolean | null;
  agents: number | null;
  /** The computer itself: running, stopped, none…; empty when that is not known. */
  sandbox: string;
  /** Why none of them is known; empty when one is. */
  problem: string;
}

function problemOf(statuses: readonly number[], asked: number): string {
  if (statuses.length < asked) return "";
  if (statuses.includes(0)) return "Service not reachable";
  return statuses.includes(401) ? "Not signed in" : "";
}

async function look(addresses: Addresses): Promise<State> {
  const failures: number[] = [];
  const quiet = <T,>(url: string): Promise<T | null> =>
    getJson<T>(url).catch((error: unknown) => {
      failures.push(error instanceof HttpError ? error.status : -1);
      return null;
    });
  const [browser, terminal, agents] = await Promise.all([
    quiet<BrowserStatus>(addresses.browser("status")),
    quiet<TerminalStatus>(addresses.terminal("status")),
    quiet<ProcessList>(addresses.terminal("processes")),
  ]);
  return {
    browser: browser?.running ?? null,
    terminal: terminal?.running ?? null,
    agents: agents?.processes.length ?? null,
    sandbox: terminal?.sandbox ?? "",
    problem: problemOf(failures, 3),
  };
}

export function StatusChips(props: { addresses: Addresses; awake: Awake; ports: Ports }) {
  const { addresses, awake, ports } = props;
  const state = useSignal<State>({ browser: null, terminal: null, agents: null, sandbox: "", problem: "" });
  useEffect(() => {
    let latest = 0;
    const update = async () => {
      if (document.visibilityState !== "visible") return;
      latest += 1;
      const mine = latest;
      const seen = await look(addresses);
      if (mine !== latest) return;
      state.value = seen;
      if (seen.sandbox) awake.note(seen.sandbox);
    };
    const glances = new Glances(() => void update(), GAP_MS);
    const ask = () => glances.ask();
    const quiet = effect(() => {
      // The first runs at once and is the first look; after a stirring the second finds what it has started.
      if (stirrings.value) glances.ask();
      glances.ask();
    });
    const timer = setInterval(ask, EVERY_MS);
    document.addEventListener("visibilitychange", ask);
    return () => {
      quiet();
      glances.stop();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", ask);
      latest += 1;
    };
  }, [addresses, awake, state]);
  const { agents, problem } = state.value;
  // What the service tells as it happens is newer than what was asked for.
  const told = ports.overview.value;
  const browser = told.sandbox ? told.browser : state.value.browser;
  const terminal = told.sandbox ? told.terminal : state.value.terminal;
  if (awake.down && !problem) {
    return (
      <div class="chips" role="status" aria-label="What runs on the computer">
        <span class="chip">{awake.made ? "Asleep" : "Not made yet"}</span>
      </div>
    );
  }
  const chip = (name: string, on: boolean | null) =>
    on === null ? null : (
      <span class={`chip wide-only ${on ? "ok" : ""}`}>{`${name} ${on ? "on" : "off"}`}</span>
    );
  return (
    <div class="chips" role="status" aria-label="What runs on the computer">
      {problem && <span class="chip bad">{problem}</span>}
      {!problem && (told.sandbox === "running" || state.value.sandbox === "running") && (
        <span class="chip wide-only ok">Computer on</span>
      )}
      {chip("Browser", browser)}
      {chip("Terminal", terminal)}
      {agents !== null && (
        <span class={`chip wide-only ${agents ? "ok" : ""}`}>
          {agents === 1 ? "1 agent" : `${agents} agents`}
        </span>
      )}
    </div>
  );
}
