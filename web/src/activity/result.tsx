/** A result where it was made: the picture, the first rows of the table, the page. */
import { useEffect, useState } from "preact/hooks";
import { shownName } from "../common/format";
import { request } from "../common/http";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { HtmlPage } from "../workspace/html";
import type { Result } from "./results";
import { baseName } from "./words";

/** A person who scrolls past wants nothing loaded. */
const SETTLED_MS = 250;
const TABLE_BYTES = 64 * 1024;
const TABLE_ROWS = 12;
const TABLE_COLUMNS = 12;

function useSettled(): boolean {
  const [settled, settle] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => settle(true), SETTLED_MS);
    return () => clearTimeout(timer);
  }, []);
  return settled;
}

export function Picture({ src, name }: { src: string; name: string }) {
  const [failed, fail] = useState(false);
  if (failed) return <p class="call-note muted">This picture cannot be shown now.</p>;
  return <img class="result-picture" src={src} alt={shownName(name)} onError={() => fail(true)} />;
}

function TableRows({ rows, name }: { rows: readonly (readonly string[])[]; name: string }) {
  const [head = [], ...body] = rows;
  const cells = (row: readonly string[]) => row.slice(0, TABLE_COLUMNS);
  const more = head.length - TABLE_COLUMNS;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <div class="result-table" role="group" tabIndex={0} aria-label={`First rows of ${shownName(name)}`}>
      <table>
        <thead>
          <tr>
            {cells(head).map((cell, i) => (
              <th key={i} scope="col">
                {shownName(cell.slice(0, 200))}
              </th>
            ))}
            {more > 0 && <th scope="col">{`${more} more`}</th>}
          </tr>
        </thead>
        <tbody>
          {body.map((row, i) => (
            <tr key={i}>
              {cells(row).map((cell, k) => (
                <td key={k}>{shownName(cell.slice(0, 200))}</td>
              ))}
              {more > 0 && <td>…</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Table({ addresses, path }: { addresses: Addresses; path: string }) {
  const [rows, show] = useState<string[][] | null>(null);
  const [problem, say] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      const headers = { range: `bytes=0-${TABLE_BYTES - 1}` };
      const response = await request(addresses.file(path), { signal: stop.signal, headers });
      const bytes = (await response.arrayBuffer()).slice(0, TABLE_BYTES);
      const { default: parser } = await import("papaparse");
      const text = new TextDecoder().decode(bytes);
      const parsed = parser.parse<string[]>(text, { preview: TABLE_ROWS + 1, skipEmptyLines: true });
      if (!stop.signal.aborted) show(parsed.data.filter(Array.isArray));
    };
    read().catch((error: unknown) => {
      if (!stop.signal.aborted) say(error instanceof Error ? error.message : "It cannot be read.");
    });
    return () => stop.abort();
  }, [addresses, path]);
  if (problem) return <p class="call-note muted">{problem}</p>;
  return rows?.length ? <TableRows rows={rows} name={baseName(path)} /> : null;
}

export function ResultView(props: { result: Result; addresses: Addresses; onOpen: (path: string) => void }) {
  const { result, addresses } = props;
  const settled = useSettled();
  const name = baseName(result.path);
  return (
    <div class={`result ${result.kind}`}>
      <button type="button" class="plain result-name" onClick={() => props.onOpen(result.path)}>
        <Icon name={result.kind === "picture" ? "eye" : result.kind === "page" ? "browser" : "file"} />
        <span class="cut">{shownName(name)}</span>
        <span class="visually-hidden">, open the file</span>
      </button>
      {result.kind !== "file" && (
        <div class="result-box">
          {settled && result.kind === "picture" && <Picture src={addresses.file(result.path)} name={name} />}
          {settled && result.kind === "table" && <Table addresses={addresses} path={result.path} />}
          {settled && result.kind === "page" && (
            <HtmlPage addresses={addresses} path={result.path} name={shownName(name)} run={false} />
          )}
        </div>
      )}
    </div>
  );
}
