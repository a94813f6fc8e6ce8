/** Spreadsheets: values as they are shown, sheet by sheet. */
import { type CellObject, read, utils } from "@e965/xlsx";
import { element, Unshowable, type Viewer } from "./context";
import { grid, summary } from "./grid";

const MOST_ROWS = 20_000;
/** The reader takes any text for a table, which is right for old exports named .xls alone. */
const PACKED = /\.(xlsx|xlsm|xlsb|ods|numbers)$/i;

/** A zip, or what one is wrapped in when it has a password. */
function isPacked(data: Uint8Array): boolean {
  return (data[0] === 0x50 && data[1] === 0x4b) || (data[0] === 0xd0 && data[1] === 0xcf);
}

/** Programs write formulas without their values; those never calculated are shown as they are. */
function nameFormulas(rows: CellObject[][]): void {
  for (const row of rows)
    for (const cell of row ?? [])
      if (cell?.t === "z" && cell.f) Object.assign(cell, { t: "s", v: `=${cell.f}`, w: undefined });
}

export const showSheet: Viewer = (host, file) => {
  if (PACKED.test(file.name) && !isPacked(file.data)) throw new Error("no zip");
  const book = read(file.data, {
    type: "array",
    dense: true,
    cellHTML: false,
    sheetStubs: true,
    sheetRows: MOST_ROWS,
  });
  for (const sheet of Object.values(book.Sheets)) nameFormulas(sheet["!data"] ?? []);
  const place = element("div", { class: "sheet-place" });
  const tabs = element("div", { class: "sheet-tabs" });
  tabs.setAttribute("role", "tablist");
  const show = (name: string) => {
    for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.textContent === name));
    const sheet = book.Sheets[name];
    const rows = sheet
      ? utils.sheet_to_json<string[]>(sheet, { header: 1, raw: false, defval: "", blankrows: true })
      : [];
    const width = rows.reduce((most, row) => Math.max(most, row.length), 0);
    place.replaceChildren(summary(rows.length, width), grid(rows, false));
  };
  for (const name of book.SheetNames) {
    const tab = element("button", { text: name });
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => show(name));
    tabs.append(tab);
  }
  const first = book.SheetNames[0];
  if (first === undefined) throw new Unshowable("This file has no sheets.");
  show(first);
  host.append(tabs, place);
};
