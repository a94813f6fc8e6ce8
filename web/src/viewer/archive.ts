/** What an archive holds, without unpacking it. */
import JSZip from "jszip";
import { parseTar, parseTarGzip } from "nanotar";
import { bytes } from "../common/format";
import { element, type Viewer } from "./context";
import { grid } from "./grid";
import { showHex } from "./hex";

interface Item {
  name: string;
  size: number | null;
  date: Date | null;
}

async function zipItems(data: Uint8Array): Promise<Item[]> {
  const zip = await JSZip.loadAsync(data);
  return Object.values(zip.files).map((entry) => {
    const inner = (entry as unknown as { _data?: { uncompressedSize?: number } })._data;
    return { name: entry.name, size: entry.dir ? null : (inner?.uncompressedSize ?? null), date: entry.date };
  });
}

async function tarItems(data: Uint8Array<ArrayBuffer>, gzip: boolean): Promise<Item[]> {
  const entries = gzip ? await parseTarGzip(data, { metaOnly: true }) : parseTar(data, { metaOnly: true });
  return entries.map((entry) => ({
    name: entry.name,
    size: entry.size ?? null,
    date: entry.attrs?.mtime ? new Date(entry.attrs.mtime * 1000) : null,
  }));
}

export const showArchive: Viewer = async (host, file, context) => {
  const zipped = file.data[0] === 0x50 && file.data[1] === 0x4b;
  const gzip = file.data[0] === 0x1f && file.data[1] === 0x8b;
  let items: Item[];
  try {
    items = zipped ? await zipItems(file.data) : await tarItems(file.data, gzip);
  } catch {
    await showHex(host, file, context);
    return;
  }
  const total = items.reduce((sum, item) => sum + (item.size ?? 0), 0);
  const rows = items.map((item) => [
    item.name,
    item.size === null ? "" : bytes(item.size),
    item.date && !Number.isNaN(item.date.getTime())
      ? item.date.toISOString().slice(0, 16).replace("T", " ")
      : "",
  ]);
  host.append(
    element("p", {
      class: "summary",
      text: `${items.length.toLocaleString()} ${items.length === 1 ? "entry" : "entries"}, ${bytes(total)} unpacked`,
    }),
    grid([["Name", "Size", "Changed"], ...rows], true, 1),
  );
};
