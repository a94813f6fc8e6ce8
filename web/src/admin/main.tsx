/** The operator's table of sandboxes. */
import "./admin.css";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Condition, SandboxList, SandboxRow, SandboxTotals } from "../common/api.generated";
import { bytes, seconds, shownName } from "../common/format";
import { getJson, HttpError, request } from "../common/http";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { Icon } from "../ui/icon";
import { Dialog, Empty, IconButton, ThemeButton } from "../ui/parts";
import { toast } from "../ui/toast";

type Deed = { verb: "stop" | "remove"; sandbox: SandboxRow };

const EVERY_MS = 5_000;

const COLUMNS: [title: string, value: (s: SandboxRow) => string, number: boolean][] = [
  ["User", (s) => s.user, false],
  ["Age", (s) => (s.age_seconds == null ? "" : seconds(s.age_seconds)), true],
  ["Idle", (s) => seconds(s.idle_seconds), true],
  ["CPU", (s) => (s.cpu_percent == null ? "" : `${s.cpu_percent.toFixed(0)} %`), true],
  ["Memory", (s) => (s.memory_bytes == null ? "" : bytes(s.memory_bytes)), true],
  ["Disk", (s) => (s.disk_bytes == null ? "" : bytes(s.disk_bytes)), true],
  ["Open", (s) => String(s.connections), true],
  ["Last tool", (s) => s.last_tool, false],
];

function tone(state: Condition): string {
  if (state === "running") return "ok";
  return state === "failed" ? "bad" : "";
}

/** The totals that are there, in words. */
function chips(totals: SandboxTotals | undefined): [name: keyof SandboxTotals, text: string][] {
  const names: (keyof SandboxTotals)[] = ["sandboxes", "running", "in_trash", "MB_in_trash"];
  return names.flatMap((name) => {
    const value = totals?.[name];
    return value === undefined ? [] : [[name, `${value.toLocaleString()} ${name.replaceAll("_", " ")}`]];
  });
}

function SandboxLine({
  sandbox,
  addresses,
  onDeed,
}: {
  sandbox: SandboxRow;
  addresses: Addresses;
  onDeed: (d: Deed) => void;
}) {
  return (
    <tr>
      <th scope="row">
        <a
          title={shownName(sandbox.chat)}
          href={addresses.admin(`preview/${encodeURIComponent(sandbox.chat)}/`)}
        >
          {shownName(sandbox.chat)}
        </a>
      </th>
      <td>
        <span class={`chip ${tone(sandbox.state)}`} title={sandbox.reason}>
          {sandbox.state}
        </span>
      </td>
      {COLUMNS.map(([title, value, number]) => (
        <td key={title} class={number ? "number" : ""} data-title={title}>
          {shownName(value(sandbox))}
        </td>
      ))}
      <td class="deeds">
        <button
          type="button"
          aria-label={`Stop the sandbox of ${shownName(sandbox.chat)}`}
          disabled={sandbox.state !== "running"}
          onClick={() => onDeed({ verb: "stop", sandbox })}
        >
          Stop
        </button>
        <button
          type="button"
          class="danger"
          aria-label={`Remove the sandbox of ${shownName(sandbox.chat)}`}
          onClick={() => onDeed({ verb: "remove", sandbox })}
        >
          Remove
        </button>
      </td>
    </tr>
  );
}

function Confirm({ deed, onYes, onNo }: { deed: Deed; onYes: () => void; onNo: () => void }) {
  const remove = deed.verb === "remove";
  return (
    <Dialog title={`${remove ? "Remove" : "Stop"} the sandbox of ${deed.sandbox.chat}?`} onClose={onNo}>
      <p>
        {remove
          ? "Its files, uploads and outputs go with it. Within TRASH_DAYS `cubicle undelete` brings all of it back."
          : "What runs in it ends. Its files stay."}
      </p>
      <div class="actions">
        <button type="button" autoFocus onClick={onNo}>
          Cancel
        </button>
        <button type="button" class={remove ? "danger" : "primary"} onClick={onYes}>
          {remove ? "Remove it" : "Stop it"}
        </button>
      </div>
    </Dialog>
  );
}

function Admin({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const overview = useSignal<SandboxList | null>(null);
  const problem = useSignal<{ reason: string; signIn: boolean } | null>(null);
  const filter = useSignal("");
  const asked = useSignal<Deed | null>(null);
  const refresh = async () => {
    try {
      overview.value = await getJson<SandboxList>(addresses.admin("api/sandboxes"));
      problem.value = null;
    } catch (error) {
      const status = error instanceof HttpError ? error.status : 0;
      problem.value = {
        reason: error instanceof Error ? error.message : "The service cannot be reached.",
        signIn: status === 401 || status === 403,
      };
    }
  };
  useEffect(() => {
    void refresh();
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void refresh();
    }, EVERY_MS);
    return () => clearInterval(timer);
  }, [addresses]);
  const carryOut = async ({ verb, sandbox }: Deed) => {
    asked.value = null;
    const at = addresses.admin(
      `api/sandboxes/${encodeURIComponent(sandbox.chat)}${verb === "stop" ? "/stop" : ""}`,
    );
    try {
      await request(at, { method: verb === "stop" ? "POST" : "DELETE" }, 60_000);
      toast(verb === "stop" ? "It was stopped." : "It was removed.");
    } catch (error) {
      toast(error instanceof Error ? error.message : "It did not work.");
    }
    await refresh();
  };
  const wanted = filter.value.toLowerCase();
  // By name: a row must not move away from under the pointer.
  const rows = (overview.value?.sandboxes ?? [])
    .filter((s) => `${s.chat} ${s.user} ${s.state} ${s.last_tool}`.toLowerCase().includes(wanted))
    .sort((a, b) => a.chat.localeCompare(b.chat, "en", { numeric: true }));
  return (
    <div class="admin">
      <header class="bar">
        <Icon name="server" />
        <h1>Sandboxes</h1>
        <span class="muted">
          {overview.value ? `${rows.length} of ${overview.value.sandboxes.length}` : ""}
        </span>
        <span class="grow" />
        {chips(overview.value?.totals).map(([name, text]) => (
          <span class="chip wide-only" key={name}>
            {text}
          </span>
        ))}
        <input
          type="search"
          placeholder="Filter"
          aria-label="Filter sandboxes"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
        <IconButton icon="reload" label="Look again" onClick={() => void refresh()} />
        <ThemeButton />
        <form method="post" action={new URL("logout", addresses.root).href}>
          <button type="submit">Sign out</button>
        </form>
      </header>
      {problem.value && (
        <div class="notice bad" role="alert">
          <span class="grow">
            {problem.value.reason}
            {overview.value && " What is shown is from before; the page keeps asking."}
          </span>
          {problem.value.signIn && (
            <a class="button" href={addresses.login()}>
              Sign in
            </a>
          )}
        </div>
      )}
      <main class="admin-body">
        {overview.value && !rows.length && <Empty icon="server" title="No sandboxes" />}
        {rows.length > 0 && (
          <table>
            <thead>
              <tr>
                <th scope="col">Chat</th>
                <th scope="col">State</th>
                {COLUMNS.map(([title, , number]) => (
                  <th scope="col" key={title} class={number ? "number" : ""}>
                    {title}
                  </th>
                ))}
                <th scope="col">
                  <span class="visually-hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((sandbox) => (
                <SandboxLine
                  key={sandbox.chat}
                  sandbox={sandbox}
                  addresses={addresses}
                  onDeed={(deed) => {
                    asked.value = deed;
                  }}
                />
              ))}
            </tbody>
          </table>
        )}
      </main>
      {asked.value && (
        <Confirm
          deed={asked.value}
          onYes={() => asked.value && void carryOut(asked.value)}
          onNo={() => {
            asked.value = null;
          }}
        />
      )}
    </div>
  );
}

start(<Admin page={readPage()} />);
