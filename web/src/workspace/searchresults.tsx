/** What a search has found: names first, then the lines of files. */
import { bytes, plainText, shownName } from "../common/format";
import { Icon } from "../ui/icon";
import { iconOf } from "./fileicons";
import type { FileSearch, FoundIn } from "./filesearch";

function Marked({ text, sought }: { text: string; sought: string }) {
  const shown = plainText(text).trim();
  const at = shown.toLowerCase().indexOf(sought.toLowerCase());
  if (at < 0) return <>{shown}</>;
  const from = Math.max(0, at - 40);
  return (
    <>
      {from > 0 && "…"}
      {shown.slice(from, at)}
      <mark>{shown.slice(at, at + sought.length)}</mark>
      {shown.slice(at + sought.length)}
    </>
  );
}

type OnOpen = (path: string, line?: number) => void;

function File({ found, sought, onOpen }: { found: FoundIn; sought: string; onOpen: OnOpen }) {
  return (
    <li>
      <button
        type="button"
        class="tree-row plain"
        title={shownName(found.path)}
        onClick={() => onOpen(found.path)}
      >
        <Icon name={iconOf(found.path)} />
        <span class="cut grow">{shownName(found.path)}</span>
      </button>
      <ul>
        {found.lines.map((line) => (
          <li key={line.line}>
            <button
              type="button"
              class="found-line plain"
              aria-label={`Line ${line.line}: ${plainText(line.text).trim()}`}
              onClick={() => onOpen(found.path, line.line)}
            >
              <span class="muted">{line.line}</span>
              <code class="cut">
                <Marked text={line.text} sought={sought} />
              </code>
            </button>
          </li>
        ))}
      </ul>
    </li>
  );
}

export function SearchResults(props: {
  search: FileSearch;
  onOpen: OnOpen;
  onFolder: (path: string) => void;
}) {
  const { names, texts, state, complete, problem } = props.search.results.value;
  const sought = props.search.text.value.trim();
  const said =
    state === "searching"
      ? "Searching…"
      : state === "done" && !names.length && !texts.length
        ? "Nothing was found in names or contents."
        : state === "done" && !complete
          ? "There is more than is shown. Look for a longer text."
          : state === "failed"
            ? problem
            : "";
  return (
    <div class="found">
      {state === "asleep" && (
        <div class="tree-empty">
          <p>{problem || "The files are not read while the computer is stopped."}</p>
          <button type="button" onClick={() => void props.search.run(true)}>
            Start it and search
          </button>
        </div>
      )}
      {names.length > 0 && (
        <>
          <h3>Names</h3>
          <ul aria-label="Names found">
            {names.map((found) => (
              <li key={found.path}>
                <button
                  type="button"
                  class="tree-row plain"
                  title={shownName(found.path)}
                  onClick={() =>
                    found.kind === "directory" ? props.onFolder(found.path) : props.onOpen(found.path)
                  }
                >
                  <Icon name={found.kind === "directory" ? "files" : iconOf(found.path)} />
                  <span class="cut grow">{shownName(found.path)}</span>
                  {found.kind === "file" && <span class="muted size">{bytes(found.size)}</span>}
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
      {texts.length > 0 && (
        <>
          <h3>Contents</h3>
          <ul aria-label="Lines found">
            {texts.map((found) => (
              <File key={found.path} found={found} sought={sought} onOpen={props.onOpen} />
            ))}
          </ul>
        </>
      )}
      <p class="muted tree-empty" role="status">
        {said}
      </p>
    </div>
  );
}
