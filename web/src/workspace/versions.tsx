/** Earlier versions of a file: what it was before each change that is kept. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { diffOf } from "../common/diff";
import type { FileVersion, FileVersionList } from "../common/files.generated";
import { bytes, moment, shownName } from "../common/format";
import { getJson, HttpError, request } from "../common/http";
import { looksLikeText } from "../common/kinds";
import type { Addresses } from "../common/page";
import { Dialog } from "../ui/parts";
import { toast } from "../ui/toast";
import { DiffLines } from "./difflines";

const MOST_COMPARED = 200_000;
const MOST_LINES = 600;
const LIMIT_MS = 90_000;

const who = (version: FileVersion) =>
  version.by === "person" ? "a person" : version.by === "model" ? "the model" : "somebody";

const timeOf = (at: number | string) =>
  moment(at)?.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) ?? "";

async function textOf(url: string): Promise<string | null> {
  const response = await request(url, { cache: "no-store" }, LIMIT_MS);
  const data = new Uint8Array(await response.arrayBuffer());
  return data.length <= MOST_COMPARED && looksLikeText(data) ? new TextDecoder().decode(data) : null;
}

function Compared({ addresses, path, id }: { addresses: Addresses; path: string; id: string }) {
  const lines = useSignal<ReturnType<typeof diffOf> | null>(null);
  const said = useSignal("Loading…");
  useEffect(() => {
    Promise.all([textOf(addresses.version(path, id)), textOf(addresses.file(path))]).then(
      ([before, now]) => {
        if (before === null || now === null) said.value = "These versions cannot be compared line by line.";
        else if (before === now) said.value = "This version is the same as the file is now.";
        else lines.value = diffOf(before, now);
      },
      (error: unknown) => {
        said.value = error instanceof Error ? error.message : "They could not be compared.";
      },
    );
  }, [id]);
  if (!lines.value) return <p role="status">{said.value}</p>;
  return <DiffLines lines={lines.value} label="From that version to now" most={MOST_LINES} />;
}

export function Versions(props: {
  addresses: Addresses;
  path: string;
  onRestored: () => void;
  onClose: () => void;
}) {
  const { addresses, path } = props;
  const versions = useSignal<FileVersion[] | null>(null);
  const problem = useSignal("");
  const compared = useSignal("");
  const busy = useSignal("");
  useEffect(() => {
    getJson<FileVersionList>(addresses.version(path, "")).then(
      (list) => {
        versions.value = list.versions;
      },
      (error: unknown) => {
        problem.value = error instanceof Error ? error.message : "The versions could not be read.";
      },
    );
  }, [path]);
  const restore = async (version: FileVersion) => {
    busy.value = version.id;
    problem.value = "";
    try {
      const { headers } = await request(addresses.file(path), { method: "HEAD", cache: "no-store" });
      const old = await request(addresses.version(path, version.id), { cache: "no-store" }, LIMIT_MS);
      const body = await old.blob();
      const condition = { "if-match": headers.get("etag") ?? "" };
      await request(addresses.edit(path), { method: "PUT", headers: condition, body }, LIMIT_MS);
      toast("The file is as it was then. The version before this is kept, too.");
      props.onRestored();
      props.onClose();
    } catch (error) {
      problem.value = error instanceof HttpError ? error.message : "It could not be put back.";
    }
    busy.value = "";
  };
  return (
    <Dialog title={`Versions of ${shownName(path.slice(path.lastIndexOf("/") + 1))}`} onClose={props.onClose}>
      {problem.value && (
        <p class="bad" role="alert">
          {problem.value}
        </p>
      )}
      {versions.value?.length === 0 && (
        <p>
          No earlier version is kept. One is kept whenever the model’s file tools, or a person here, change
          the file; not when a program writes it.
        </p>
      )}
      {!versions.value && !problem.value && <p role="status">Loading…</p>}
      <ul class="versions">
        {versions.value?.map((version) => (
          <li key={version.id}>
            <div class="row">
              <span class="grow">
                <strong>{version.at ? `Before ${timeOf(version.at)}` : "Earlier"}</strong>
                <span class="muted">{`${bytes(version.size)} · replaced by ${who(version)}`}</span>
              </span>
              <button
                type="button"
                aria-expanded={compared.value === version.id}
                onClick={() => {
                  compared.value = compared.value === version.id ? "" : version.id;
                }}
              >
                Compare
              </button>
              <a class="button" href={addresses.version(path, version.id, true)} download>
                Download
              </a>
              {!addresses.viewOnly && (
                <button type="button" disabled={busy.value !== ""} onClick={() => void restore(version)}>
                  Put back
                </button>
              )}
            </div>
            {compared.value === version.id && <Compared addresses={addresses} path={path} id={version.id} />}
          </li>
        ))}
      </ul>
      <div class="row">
        <button type="button" autoFocus onClick={props.onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
