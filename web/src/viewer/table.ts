/** CSV and TSV. */
import Papa from "papaparse";
import { Unshowable, type Viewer } from "./context";
import { grid, summary } from "./grid";
import { decodeText } from "./text";

const MOST_ROWS = 100_000;

export const showTable: Viewer = (host, file) => {
  const text = decodeText(file.data);
  const { data } = Papa.parse<string[]>(text, { skipEmptyLines: true, preview: MOST_ROWS });
  if (!data.length) throw new Unshowable("This table is empty.");
  host.append(summary(data.length - 1, data[0]?.length ?? 0), grid(data, true));
};
