/** The admin page: an operator sees every tenant, others their own. */
import "./admin.css";
import { signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ChatLink } from "../common/api.generated";
import { shownName } from "../common/format";
import { request } from "../common/http";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { Brand } from "../ui/brand";
import { Dialog, ThemeButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { Feed, queryOf, readWanted, type Sort, STATES, TABS, type Tab, type Wanted } from "./feed";
import { Problems, Queue, Tenants } from "./lists";
import { Cards, History } from "./numbers";
import type { Overview, SandboxShown } from "./overview.generated";
import { type Deed, SandboxTable, sortings } from "./sandboxes";
import { count } from "./words";

const TYPING_MS = 250;

function Confirm({
  deed,
  whose,
  onYes,
  onNo,
}: {
  deed: Deed;
  whose: string;
  onYes: () => void;
  onNo: () => void;
}) {
  const remove = deed.verb === "remove";
  return (
    <Dialog title={`${remove ? "Remove" : "Stop"} the sandbox of ${whose}?`} onClose={onNo}>
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

/** The time of the service, in seconds, by which ages are counted. */
const now = signal(Date.now() / 1000);

function useClock(feed: Feed): void {
  useEffect(() => {
    const tick = () => {
      if (document.visibilityState === "visible") now.value = (Date.now() + feed.ahead.value) / 1000;
    };
    tick();
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, [feed]);
}

const TAB_WORDS: Record<Tab, string> = {
  sandboxes: "Sandboxes",
  tenants: "Tenants",
  problems: "Problems",
  queue: "Queue",
};

function tabCount(tab: Tab, overview: Partial<Overview>): number | undefined {
  switch (tab) {
    case "sandboxes":
      return overview.sandboxes?.total;
    case "tenants":
      return overview.tenants?.total;
    case "problems":
      return overview.problems?.length;
    case "queue":
      return overview.service?.waiting;
  }
}

function Tabs({
  shown,
  overview,
  onTab,
}: {
  shown: Tab;
  overview: Partial<Overview>;
  onTab: (tab: Tab) => void;
}) {
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && TABS[(TABS.indexOf(shown) + step + TABS.length) % TABS.length];
    if (!next) return;
    event.preventDefault();
    onTab(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label="What is shown" onKeyDown={move}>
      {TABS.map((tab) => {
        const number = tabCount(tab, overview);
        return (
          <button
            type="button"
            key={tab}
            role="tab"
            id={`tab-${tab}`}
            aria-controls="tab-panel"
            aria-selected={tab === shown}
            tabIndex={tab === shown ? 0 : -1}
            class="plain"
            onClick={() => onTab(tab)}
          >
            {TAB_WORDS[tab]}
            {number ? <span class="muted"> {count(number)}</span> : null}
          </button>
        );
      })}
    </div>
  );
}

interface FilterProps {
  wanted: Wanted;
  operator: boolean;
  tenants: string[];
  onWant: (change: Partial<Wanted>) => void;
}

function Filters({ wanted, operator, tenants, onWant }: FilterProps) {
  const typing = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const text = useSignal(wanted.q);
  useEffect(() => {
    text.value = wanted.q;
  }, [wanted.q]);
  useEffect(() => () => clearTimeout(typing.current), []);
  const names = [
    ...new Set([...tenants, ...(wanted.tenant && wanted.tenant !== "*" ? [wanted.tenant] : [])]),
  ];
  return (
    <search class="filters">
      <input
        type="search"
        placeholder="Filter"
        aria-label="Filter sandboxes"
        maxLength={200}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          clearTimeout(typing.current);
          typing.current = setTimeout(() => onWant({ q: text.value, offset: 0 }), TYPING_MS);
        }}
      />
      <select
        aria-label="State"
        value={wanted.state}
        onChange={(event) => onWant({ state: event.currentTarget.value, offset: 0 })}
      >
        <option value="">Any state</option>
        {STATES.map((state) => (
          <option key={state} value={state}>
            {state}
          </option>
        ))}
      </select>
      {operator && (
        <select
          aria-label="Tenant"
          value={wanted.tenant}
          onChange={(event) => onWant({ tenant: event.currentTarget.value, offset: 0 })}
        >
          <option value="*">All tenants</option>
          {names.map((name) => (
            <option key={name} value={name}>
              {shownName(name)}
            </option>
          ))}
        </select>
      )}
      <select
        class="phone-only"
        aria-label="Sort by"
        value={wanted.sort}
        onChange={(event) =>
          onWant({ sort: event.currentTarget.value as Sort, descending: false, offset: 0 })
        }
      >
        {sortings(operator).map(([sort, title]) => (
          <option key={sort} value={sort}>
            By {title.toLowerCase()}
          </option>
        ))}
      </select>
    </search>
  );
}

function Trouble({ feed, login }: { feed: Feed; login: string }) {
  const problem = feed.problem.value;
  if (!problem) return null;
  return (
    <div class="notice bad" role="alert">
      <span class="grow">
        {problem.reason}
        {feed.overview.value && " What is shown is from before; the page keeps asking."}
      </span>
      {problem.signIn && (
        <a class="button" href={login}>
          Sign in
        </a>
      )}
    </div>
  );
}

function Admin({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const wanted = useSignal(readWanted(document.location.search, page.operator));
  const asked = useSignal<Deed | null>(null);
  const feed = useMemo(
    () => new Feed((query, events) => addresses.admin(`api/overview${events ? "/events" : ""}?${query}`)),
    [addresses],
  );
  useClock(feed);
  useEffect(() => {
    feed.ask(queryOf(wanted.value, false));
  }, [wanted.value]);
  useEffect(() => feed.start(), [feed]);
  const want = (change: Partial<Wanted>) => {
    wanted.value = { ...wanted.value, ...change };
    const query = queryOf(wanted.value, true);
    history.replaceState(history.state, "", query ? `?${query}` : document.location.pathname);
  };
  const at = (sandbox: SandboxShown, tail: string) => {
    const query = sandbox.tenant === page.tenant ? "" : `?tenant=${encodeURIComponent(sandbox.tenant)}`;
    return addresses.admin(`api/${tail.replace("CHAT", encodeURIComponent(sandbox.chat))}${query}`);
  };
  const carryOut = async ({ verb, sandbox }: Deed) => {
    asked.value = null;
    const stop = verb === "stop";
    try {
      const url = at(sandbox, `sandboxes/CHAT${stop ? "/stop" : ""}`);
      await request(url, { method: stop ? "POST" : "DELETE" }, 60_000);
      toast(stop ? "It was stopped." : "It was removed.");
    } catch (error) {
      toast(error instanceof Error ? error.message : "It did not work.");
    }
  };
  /** Another tenant's workspace opens by a link only. */
  const look = async (sandbox: SandboxShown) => {
    try {
      const url = new URL(at(sandbox, "links/CHAT"));
      for (const [name, value] of [
        ["access", "view"],
        ["hours", "1"],
        ["label", "admin page"],
      ] as const)
        url.searchParams.set(name, value);
      const link = (await (await request(url.href, { method: "POST" })).json()) as ChatLink;
      if (link.url) document.location.assign(link.url);
    } catch (error) {
      toast(error instanceof Error ? error.message : "It did not work.");
    }
  };
  const sorted = (sort: Sort) => {
    const again = sort === wanted.value.sort;
    want({ sort, descending: again && !wanted.value.descending, offset: 0 });
  };
  const overview = feed.overview.value ?? {};
  const { service, sandboxes, tenants, problems, history: past } = overview;
  const { tab, sort, descending, q, state } = wanted.value;
  const everybody = page.operator && wanted.value.tenant === "*";
  const whose = (sandbox: SandboxShown) =>
    page.operator && sandbox.tenant !== page.tenant
      ? `${shownName(sandbox.chat)} of ${shownName(sandbox.tenant)}`
      : shownName(sandbox.chat);
  const filtered = q !== "" || state !== "";
  return (
    <div class="admin">
      <header class="bar">
        <Brand home={addresses.root.href} short />
        <h1>Sandboxes</h1>
        <span class="muted" role="status">
          {sandboxes ? `${count(sandboxes.matching)} of ${count(sandboxes.total)}` : ""}
        </span>
        <span class={`chip ${feed.live.value ? "ok" : "warn"}`} role="status">
          {feed.live.value ? "Live" : "Connecting"}
        </span>
        <span class="grow" />
        {!page.operator && <span class="muted wide-only">{shownName(page.tenant)}</span>}
        <ThemeButton />
        <form method="post" action={new URL("logout", addresses.root).href}>
          <button type="submit">Sign out</button>
        </form>
      </header>
      <Trouble feed={feed} login={addresses.login()} />
      <main class="admin-body">
        <Filters
          wanted={wanted.value}
          operator={page.operator}
          tenants={tenants?.rows.map((row) => row.tenant) ?? []}
          onWant={want}
        />
        {service && <Cards now={service} />}
        {past && <History history={past} />}
        <Tabs shown={tab} overview={overview} onTab={(next) => want({ tab: next })} />
        <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
          {tab === "sandboxes" && sandboxes && (
            <SandboxTable
              page={sandboxes}
              now={now.value}
              tenants={everybody}
              sort={sort}
              descending={descending}
              filtered={filtered}
              workspace={(sandbox) =>
                sandbox.tenant === page.tenant
                  ? addresses.admin(`preview/${encodeURIComponent(sandbox.chat)}/`)
                  : null
              }
              onSort={sorted}
              onPage={(offset) => want({ offset })}
              onDeed={(deed) => {
                asked.value = deed;
              }}
              onLook={(sandbox) => void look(sandbox)}
            />
          )}
          {tab === "tenants" && tenants && (
            <Tenants
              list={tenants}
              {...(page.operator && {
                onTenant: (tenant: string) => want({ tenant, tab: "sandboxes", offset: 0 }),
              })}
            />
          )}
          {tab === "problems" && problems && (
            <Problems
              list={problems}
              now={now.value}
              tenants={everybody}
              onChat={(chat) => want({ q: chat, state: "", tab: "sandboxes", offset: 0 })}
            />
          )}
          {tab === "queue" && service && (
            <Queue list={service.queue} waiting={service.waiting} now={now.value} />
          )}
        </div>
      </main>
      {asked.value && (
        <Confirm
          deed={asked.value}
          whose={whose(asked.value.sandbox)}
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
