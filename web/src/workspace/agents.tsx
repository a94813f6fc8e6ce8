/** Coding agents of the sandbox: those that run, and the sessions they left. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ProcessList, ProcessRecord, SessionList, SessionRecord } from "../common/api.generated";
import { ago, bytes, seconds, shownName } from "../common/format";
import { getJson, HttpError, post } from "../common/http";
import type { Addresses } from "../common/page";
import { stir } from "../common/stirring";
import { Dialog, Empty, IconButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { type Awake, DownNotice } from "./awake";
import { showPanel } from "./layout";
import { TranscriptDialog } from "./transcript";

const EVERY_MS = 5_000;

export function AgentsPanel({ addresses, awake }: { addresses: Addresses; awake: Awake }) {
  const processes = useSignal<ProcessRecord[]>([]);
  const sessions = useSignal<SessionRecord[]>([]);
  const problem = useSignal("");
  const looked = useSignal(false);
  const asked = useSignal<ProcessRecord | null>(null);
  const read = useSignal<SessionRecord | null>(null);

  const refresh = async () => {
    try {
      const [running, saved] = await Promise.all([
        getJson<ProcessList>(addresses.terminal("processes")),
        getJson<SessionList>(addresses.terminal("sessions")),
      ]);
      processes.value = running.processes;
      sessions.value = saved.sessions;
      problem.value = "";
      looked.value = true;
    } catch (error) {
      if (awake.takes(error)) {
        processes.value = []; // of the sessions, what was read before still holds
        problem.value = "";
        return;
      }
      const absent = error instanceof HttpError && error.status === 404;
      problem.value = absent || !(error instanceof Error) ? "" : error.message;
      looked.value = absent || looked.value;
    }
  };
  useEffect(() => {
    void refresh();
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void refresh();
    }, EVERY_MS);
    return () => clearInterval(timer);
  }, [addresses, awake]);

  const kill = async (process: ProcessRecord) => {
    asked.value = null;
    try {
      await post(addresses.terminal(`processes/${process.pid}/kill`));
      toast(`Process ${process.pid} was killed.`);
    } catch (error) {
      toast(error instanceof Error ? error.message : "It could not be killed.");
    }
    stir();
    await refresh();
  };
  const resume = async (session: SessionRecord) => {
    toast("Opening the session in the terminal…");
    try {
      await post(addresses.terminal(`sessions/${encodeURIComponent(session.session_id)}/resume`));
      showPanel("terminal");
    } catch (error) {
      toast(error instanceof Error ? error.message : "The session could not be opened.");
    }
  };
  const copy = (session: SessionRecord) =>
    navigator.clipboard.writeText(session.session_id).then(
      () => toast("The session id was copied: sub_agent resumes it as resume_session_id."),
      () => toast("This browser refused to copy."),
    );

  return (
    <section class="panel" aria-label="Agents">
      <header class="bar">
        <h2 class="grow">Agents</h2>
        <IconButton icon="reload" label="Look again" onClick={() => void refresh()} />
      </header>
      <DownNotice awake={awake} />
      <div class="panel-body padded">
        {problem.value && (
          <p class="notice bad" role="alert">
            {problem.value}
          </p>
        )}
        <h3>Running now</h3>
        {awake.down && <p class="muted">Nothing runs while the computer is down.</p>}
        {!awake.down && !looked.value && !problem.value && <p class="muted">Looking…</p>}
        {!awake.down && looked.value && processes.value.length === 0 && (
          <p class="muted">No coding agent runs on this computer.</p>
        )}
        <ul class="cards">
          {processes.value.map((process) => (
            <li key={process.pid}>
              <div class="grow">
                <code class="cut">{shownName(process.command)}</code>
                <p class="muted">
                  pid {process.pid} · started {ago(process.started_at)} · {seconds(process.cpu_seconds)} of
                  CPU · {bytes(process.memory_bytes)}
                </p>
              </div>
              {!addresses.viewOnly && (
                <button
                  type="button"
                  class="danger"
                  onClick={() => {
                    asked.value = process;
                  }}
                >
                  Kill
                </button>
              )}
            </li>
          ))}
        </ul>
        <h3>Saved sessions</h3>
        {looked.value && sessions.value.length === 0 && (
          <Empty icon="agents" title="No saved sessions">
            <p>Each run of a coding agent leaves a session that can be resumed.</p>
          </Empty>
        )}
        <ul class="cards">
          {sessions.value.map((session) => (
            <li key={session.session_id}>
              <div class="grow">
                <strong class="cut">{shownName(session.title || session.session_id)}</strong>
                <p class="muted">
                  {session.agent} · {session.model ? `${shownName(session.model)} · ` : ""}
                  {session.turns} {session.turns === 1 ? "turn" : "turns"} · {ago(session.updated_at)}
                </p>
              </div>
              <button
                type="button"
                onClick={() => {
                  read.value = session;
                }}
              >
                Read
              </button>
              {!addresses.viewOnly && (
                <button type="button" onClick={() => void resume(session)}>
                  Resume
                </button>
              )}
              <button type="button" onClick={() => void copy(session)}>
                Copy id
              </button>
            </li>
          ))}
        </ul>
      </div>
      {read.value && (
        <TranscriptDialog
          addresses={addresses}
          id={read.value.session_id}
          title={read.value.title || read.value.session_id}
          onClose={() => {
            read.value = null;
          }}
        />
      )}
      {asked.value && (
        <Dialog
          title={`Kill process ${asked.value.pid}?`}
          onClose={() => {
            asked.value = null;
          }}
        >
          <pre>{shownName(asked.value.command)}</pre>
          <p class="muted">What it has not saved is lost. Its session can be resumed.</p>
          <div class="actions">
            <button
              type="button"
              autoFocus
              onClick={() => {
                asked.value = null;
              }}
            >
              Cancel
            </button>
            <button type="button" class="danger" onClick={() => asked.value && void kill(asked.value)}>
              Kill it
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}
