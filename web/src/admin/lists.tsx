/** Tenants, the problems of the last hour, and the queue of starts. */

import { shownName } from "../common/format";
import { Empty } from "../ui/parts";
import type { ProblemShown, QueuedStart, TenantList } from "./overview.generated";
import { budget, count, problemWords, quota, span } from "./words";

const NUMBERS: [
  title: string,
  value: "sandboxes" | "running" | "waiting" | "calls" | "errors" | "denied" | "refused",
][] = [
  ["Sandboxes", "sandboxes"],
  ["Running", "running"],
  ["Waiting", "waiting"],
  ["Calls", "calls"],
  ["Errors", "errors"],
  ["Denied", "denied"],
  ["Refused", "refused"],
];

function Uses({ uses }: { uses: { text: string; tone: string }[] }) {
  const shown = uses.filter((use) => use.text);
  if (!shown.length) return <span class="muted">no limit</span>;
  return (
    <ul class="uses">
      {shown.map((use) => (
        <li key={use.text} class={use.tone}>
          {use.text}
        </li>
      ))}
    </ul>
  );
}

export function Tenants({ list, onTenant }: { list: TenantList; onTenant?: (tenant: string) => void }) {
  return (
    <>
      <table>
        <caption>Calls, errors, egress denials and refusals are those of the last hour.</caption>
        <thead>
          <tr>
            <th scope="col">Tenant</th>
            {NUMBERS.map(([title]) => (
              <th scope="col" key={title} class="number">
                {title}
              </th>
            ))}
            <th scope="col">Quotas</th>
            <th scope="col">Spent by coding agents</th>
          </tr>
        </thead>
        <tbody>
          {list.rows.map((row) => (
            <tr key={row.tenant}>
              <th scope="row">
                {onTenant ? (
                  <button
                    type="button"
                    class="plain"
                    aria-label={`Show only ${shownName(row.tenant)}`}
                    onClick={() => onTenant(row.tenant)}
                  >
                    {shownName(row.tenant)}
                  </button>
                ) : (
                  shownName(row.tenant)
                )}
              </th>
              {NUMBERS.map(([title, name]) => (
                <td key={title} class="number" data-title={title}>
                  {count(row[name])}
                </td>
              ))}
              <td data-title="Quotas" class="wraps">
                <Uses uses={row.quotas.map(quota)} />
              </td>
              <td data-title="Spent by coding agents" class="wraps">
                <Uses uses={[budget(row.budget)]} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {list.total > list.rows.length && (
        <p class="muted">
          The {count(list.rows.length)} busiest of {count(list.total)} tenants.
        </p>
      )}
    </>
  );
}

export function Problems(props: {
  list: ProblemShown[];
  now: number;
  tenants: boolean;
  onChat: (chat: string) => void;
}) {
  if (!props.list.length) return <Empty icon="activity" title="No problems in the last hour" />;
  return (
    <table>
      <caption>Calls that did not end well, denials and refusals of the last hour, the latest first.</caption>
      <thead>
        <tr>
          <th scope="col">Chat</th>
          {props.tenants && <th scope="col">Tenant</th>}
          <th scope="col">What</th>
          <th scope="col" class="number">
            Times
          </th>
          <th scope="col" class="number">
            Last
          </th>
        </tr>
      </thead>
      <tbody>
        {props.list.map((problem) => (
          <tr key={`${problem.tenant} ${problem.chat} ${problem.kind} ${problem.detail}`}>
            <th scope="row">
              <button
                type="button"
                class="plain cut"
                aria-label={`Show the sandbox of ${shownName(problem.chat)}`}
                onClick={() => props.onChat(problem.chat)}
              >
                {shownName(problem.chat)}
              </button>
            </th>
            {props.tenants && <td data-title="Tenant">{shownName(problem.tenant)}</td>}
            <td data-title="What" class="wraps">
              {problemWords(problem)}
            </td>
            <td data-title="Times" class="number">
              {count(problem.count)}
            </td>
            <td data-title="Last" class="number">
              {span(props.now - problem.at)} ago
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function Queue({ list, waiting, now }: { list: QueuedStart[]; waiting: number; now: number }) {
  if (!list.length) return <Empty icon="server" title="No start waits" />;
  return (
    <>
      <table>
        <caption>Starts over a limit, in the order in which they came.</caption>
        <thead>
          <tr>
            <th scope="col">Chat</th>
            <th scope="col">Tenant</th>
            <th scope="col">User</th>
            <th scope="col" class="number">
              Position
            </th>
            <th scope="col" class="number">
              Waits for
            </th>
          </tr>
        </thead>
        <tbody>
          {list.map((start) => (
            <tr key={`${start.tenant} ${start.chat}`}>
              <th scope="row">{shownName(start.chat)}</th>
              <td data-title="Tenant">{shownName(start.tenant)}</td>
              <td data-title="User">{shownName(start.user)}</td>
              <td data-title="Position" class="number">
                {count(start.position)}
              </td>
              <td data-title="Waits for" class="number">
                {span(now - start.since)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {waiting > list.length && <p class="muted">And {count(waiting - list.length)} more.</p>}
    </>
  );
}
