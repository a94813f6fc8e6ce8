/** The table of sandboxes: one page of it, sorted and filtered by the service. */

import { bytes, shownName } from "../common/format";
import { Empty, IconButton } from "../ui/parts";
import { ROWS, type Sort } from "./feed";
import type { Condition, SandboxPage, SandboxShown } from "./overview.generated";
import { count, span } from "./words";

export type Deed = { verb: "stop" | "remove"; sandbox: SandboxShown };

interface Column {
  sort: Sort;
  title: string;
  number: boolean;
  value: (sandbox: SandboxShown, now: number) => string;
}

const COLUMNS: Column[] = [
  { sort: "user", title: "User", number: false, value: (s) => s.user },
  {
    sort: "age",
    title: "Age",
    number: true,
    value: (s, now) => (s.since == null ? "" : span(now - s.since)),
  },
  {
    sort: "idle",
    title: "Idle",
    number: true,
    value: (s, now) => (s.idle_since == null ? "in use" : span(now - s.idle_since)),
  },
  {
    sort: "cpu",
    title: "CPU",
    number: true,
    value: (s) => (s.cpu_percent == null ? "" : `${s.cpu_percent} %`),
  },
  {
    sort: "memory",
    title: "Memory",
    number: true,
    value: (s) => (s.memory_bytes == null ? "" : bytes(s.memory_bytes)),
  },
  {
    sort: "disk",
    title: "Disk",
    number: true,
    value: (s) => (s.disk_bytes == null ? "" : bytes(s.disk_bytes)),
  },
  { sort: "connections", title: "Open", number: true, value: (s) => count(s.connections) },
  { sort: "tool", title: "Last tool", number: false, value: (s) => s.last_tool },
  { sort: "errors", title: "Errors", number: true, value: (s) => (s.errors ? count(s.errors) : "") },
];
const TENANT: Column = { sort: "tenant", title: "Tenant", number: false, value: (s) => s.tenant };
const FIRST: [Sort, string][] = [
  ["chat", "Chat"],
  ["state", "State"],
];

export function tone(state: Condition): string {
  if (state === "running") return "ok";
  if (state === "starting") return "accent";
  return state === "failed" ? "bad" : "";
}

export const columns = (tenants: boolean): Column[] => (tenants ? [TENANT, ...COLUMNS] : COLUMNS);

/** By what the table can be sorted, with the words for it. */
export const sortings = (tenants: boolean): [Sort, string][] => [
  ...FIRST,
  ...columns(tenants).map((column): [Sort, string] => [column.sort, column.title]),
];

interface TableProps {
  page: SandboxPage;
  now: number;
  tenants: boolean;
  sort: Sort;
  descending: boolean;
  filtered: boolean;
  /** The address of a workspace that this person can open; null for one of another tenant. */
  workspace: (sandbox: SandboxShown) => string | null;
  onSort: (sort: Sort) => void;
  onPage: (offset: number) => void;
  onDeed: (deed: Deed) => void;
  onLook: (sandbox: SandboxShown) => void;
}

function Line({ sandbox, props }: { sandbox: SandboxShown; props: TableProps }) {
  const name = shownName(sandbox.chat);
  const address = props.workspace(sandbox);
  const whose = address === null ? `${name} of ${shownName(sandbox.tenant)}` : name;
  return (
    <tr>
      <th scope="row">
        {address === null ? (
          <span title={name}>{name}</span>
        ) : (
          <a title={name} href={address}>
            {name}
          </a>
        )}
      </th>
      <td>
        <span class={`chip ${tone(sandbox.state)}`} title={shownName(sandbox.reason)}>
          {sandbox.state}
        </span>
      </td>
      {columns(props.tenants).map(({ title, value, number }) => {
        const text = shownName(value(sandbox, props.now));
        return (
          <td
            key={title}
            class={number ? "number" : "text"}
            data-title={title}
            title={number ? undefined : text}
          >
            {text}
          </td>
        );
      })}
      <td class="deeds">
        {address === null && (
          <button type="button" aria-label={`Look at ${whose}`} onClick={() => props.onLook(sandbox)}>
            Look
          </button>
        )}
        <button
          type="button"
          aria-label={`Stop the sandbox of ${whose}`}
          disabled={sandbox.state !== "running"}
          onClick={() => props.onDeed({ verb: "stop", sandbox })}
        >
          Stop
        </button>
        <button
          type="button"
          class="danger"
          aria-label={`Remove the sandbox of ${whose}`}
          onClick={() => props.onDeed({ verb: "remove", sandbox })}
        >
          Remove
        </button>
      </td>
    </tr>
  );
}

function Heading({
  sort,
  title,
  number,
  props,
}: {
  sort: Sort;
  title: string;
  number: boolean;
  props: TableProps;
}) {
  const sorted = props.sort === sort;
  const direction = props.descending ? "descending" : "ascending";
  return (
    <th scope="col" class={number ? "number" : ""} aria-sort={sorted ? direction : "none"}>
      <button type="button" class="plain" onClick={() => props.onSort(sort)}>
        {title}
        <span aria-hidden="true">{sorted ? (props.descending ? " ▼" : " ▲") : ""}</span>
      </button>
    </th>
  );
}

export function Pager({ page, onPage }: { page: SandboxPage; onPage: (offset: number) => void }) {
  const last = page.offset + page.rows.length;
  if (page.matching <= ROWS && page.offset === 0) return null;
  return (
    <nav class="pager" aria-label="Pages of the table">
      <IconButton
        icon="back"
        label="Previous page"
        disabled={page.offset === 0}
        onClick={() => onPage(Math.max(0, page.offset - ROWS))}
      />
      <span>
        {count(page.offset + 1)} to {count(last)} of {count(page.matching)}
      </span>
      <IconButton
        icon="forward"
        label="Next page"
        disabled={last >= page.matching}
        onClick={() => onPage(page.offset + ROWS)}
      />
    </nav>
  );
}

export function SandboxTable(props: TableProps) {
  const { page } = props;
  if (!page.rows.length) {
    return (
      <Empty icon="server" title={props.filtered ? "No sandbox fits the filter" : "No sandboxes"}>
        <p>{props.filtered ? "" : "The first tool call or upload of a chat makes one."}</p>
      </Empty>
    );
  }
  return (
    <>
      <table>
        <caption class="visually-hidden">Sandboxes</caption>
        <thead>
          <tr>
            {FIRST.map(([sort, title]) => (
              <Heading key={sort} sort={sort} title={title} number={false} props={props} />
            ))}
            {columns(props.tenants).map(({ sort, title, number }) => (
              <Heading key={sort} sort={sort} title={title} number={number} props={props} />
            ))}
            <td>
              <span class="visually-hidden">Actions</span>
            </td>
          </tr>
        </thead>
        <tbody>
          {page.rows.map((sandbox) => (
            <Line key={`${sandbox.tenant} ${sandbox.chat}`} sandbox={sandbox} props={props} />
          ))}
        </tbody>
      </table>
      <Pager page={page} onPage={props.onPage} />
    </>
  );
}
