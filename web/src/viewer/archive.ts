/** What an archive holds, without unpacking it. */
import JSZip from "jszip";
import { parseTar, parseTarGzip } from "nanotar";
import { bytes, shownName } from "../common/format";
import { element, type Viewer } from "./context";
import { grid } from "./grid";
import { showHex } from "./hex";

interface Item {
  name: string;
  size: number | null;
  date: Date | null;
}

/** Every entry under the name that it has. JSZip itself cleans names, and of two that are then alike keeps one. */
async function zipItems(data: Uint8Array): Promise<Item[]> {
  const zip = new JSZip();
  const found: JSZip.JSZipObject[] = [];
  const file = zip.file as (...given: unknown[]) => unknown;
  zip.file = ((name: string, ...rest: unknown[]) => {
    const made = file.call(zip, name, ...rest);
    const added = rest.length ? (zip.files[name] ?? zip.files[`${name}/`]) : undefined;
    if (added) found.push(added);
    return made;
  }) as typeof zip.file;
  await zip.loadAsync(data);
  return found.map((entry) => {
    const inner = (entry as unknown as { _data?: { uncompressedSize?: number } })._data;
    const name = entry.unsafeOriginalName ?? entry.name;
    return { name, size: entry.dir ? null : (inner?.uncompressedSize ?? null), date: entry.date };
  });
}

/** The reader takes any bytes for entries, and would go in circles over one of a size below nothing. */
function isWhole(entry: { size?: number | undefined }): boolean {
  if (!(Number(entry.size) >= 0)) throw new Error("no tar");
  return true;
}

async function tarItems(data: Uint8Array<ArrayBuffer>, gzip: boolean): Promise<Item[]> {
  const options = { metaOnly: true, filter: isWhole };
  const entries = gzip ? await parseTarGzip(data, options) : parseTar(data, options);
  if (!entries.length && !gzip && data.some((byte) => byte !== 0)) throw new Error("no tar");
  return entries.map((entry) => ({
    name: entry.name,
    size: entry.size ?? null,
    date: entry.attrs?.mtime ? new Date(entry.attrs.mtime * 1000) : null,
  }));
}

/** Whether a program that trusts the name would write outside of the folder that it unpacks into. */
export function leadsOut(name: string): boolean {
  return /^([/\\]|[a-z]:)|(^|[/\\])\.\.([/\\]|$)/i.test(name);
}

export const showArchive: Viewer = async (host, file, context) => {
  const zipped = file.data[0] === 0x50 && file.data[1] === 0x4b;
  const gzip = file.data[0] === 0x1f && file.data[1] === 0x8b;
  if (!zipped && !gzip && !/\.tar$/i.test(file.name)) throw new Error("no archive");
  let items: Item[];
  try {
    items = zipped ? await zipItems(file.data) : await tarItems(file.data, gzip);
  } catch (error) {
    // What gzip packs is mostly a tar, but may be one file of any kind.
    if (!gzip || /\.(tgz|tar\.gz)$/i.test(file.name)) throw error;
    await showHex(host, file, context);
    return;
  }
  const total = items.reduce((sum, item) => sum + (item.size ?? 0), 0);
  const unsafe = items.filter((item) => leadsOut(item.name)).length;
  const rows = items.map((item) => [
    shownName(item.name),
    item.size === null ? "" : bytes(item.size),
    item.date && !Number.isNaN(item.date.getTime())
      ? item.date.toISOString().slice(0, 16).replace("T", " ")
      : "",
    ...(unsafe ? [leadsOut(item.name) ? "Unsafe: leads out of the folder" : ""] : []),
  ]);
  host.append(
    element("p", {
      class: "summary",
      text: `${items.length.toLocaleString()} ${items.length === 1 ? "entry" : "entries"}, ${bytes(total)} unpacked`,
    }),
    ...(unsafe
      ? [
          element("p", {
            class: "part",
            text: `Do not unpack this as it is: ${unsafe.toLocaleString()} of its names ${unsafe === 1 ? "leads" : "lead"} out of the folder that it is unpacked into.`,
          }),
        ]
      : []),
    ...(zipped
      ? []
      : [
          element("p", { class: "summary", text: "Names are shown without a leading “/” and without “..”." }),
        ]),
    grid([["Name", "Size", "Changed", ...(unsafe ? ["Safety"] : [])], ...rows], true, 1),
  );
};
