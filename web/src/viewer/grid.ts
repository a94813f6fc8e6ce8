/** Rows as a table, some at a time: a browser cannot lay out a million cells. */
import { element } from "./context";

const ROWS_AT_ONCE = 500;
const MOST_COLUMNS = 300;

export function columnName(index: number): string {
  let name = "";
  for (let left = index + 1; left > 0; left = Math.floor((left - 1) / 26)) {
    name = String.fromCharCode(65 + ((left - 1) % 26)) + name;
  }
  return name;
}

function cells(row: readonly string[], width: number, tag: "td" | "th"): HTMLElement[] {
  return Array.from({ length: width }, (_, i) => {
    const cell = element(tag, { text: row[i] ?? "" });
    if (tag === "td" && /^[-+]?[\d.,\s]+%?$/.test(row[i] ?? "")) cell.className = "number";
    return cell;
  });
}

/** `heading`: the first row names the columns; without one they are called A, B, C. `first`: number of the first row. */
export function grid(
  rows: readonly (readonly string[])[],
  heading: boolean,
  first = heading ? 2 : 1,
): HTMLElement {
  const width = Math.min(
    MOST_COLUMNS,
    rows.reduce((most, row) => Math.max(most, row.length), 0),
  );
  const names = heading ? (rows[0] ?? []) : Array.from({ length: width }, (_, i) => columnName(i));
  const data = heading ? rows.slice(1) : rows;
  const head = element(
    "thead",
    {},
    element("tr", {}, element("th", { class: "row-number" }), ...cells(names, width, "th")),
  );
  const body = element("tbody");
  const more = element("button", { class: "more" });
  more.type = "button";
  let shown = 0;
  const grow = () => {
    const next = data.slice(shown, shown + ROWS_AT_ONCE);
    body.append(
      ...next.map((row, i) => {
        const number = element("th", { class: "row-number", text: String(shown + i + first) });
        return element("tr", {}, number, ...cells(row, width, "td"));
      }),
    );
    shown += next.length;
    more.hidden = shown >= data.length;
    more.textContent = `Show more rows (${(data.length - shown).toLocaleString()} left)`;
  };
  more.addEventListener("click", grow);
  grow();
  const table = element("table", { class: "grid" }, head, body);
  const scroll = element("div", { class: "grid-scroll" }, table, more);
  scroll.tabIndex = 0;
  return scroll;
}

export function summary(rows: number, columns: number): HTMLElement {
  const counted = (count: number, word: string) =>
    `${count.toLocaleString()} ${word}${count === 1 ? "" : "s"}`;
  return element("p", {
    class: "summary",
    text: `${counted(rows, "row")}, ${counted(columns, "column")}`,
  });
}
