/** Rows as a table, some at a time: a browser cannot lay out a million cells. */
import { element } from "./context";
import { arranged, type Order } from "./gridrows";

const ROWS_AT_ONCE = 500;
const MOST_COLUMNS = 300;

export function columnName(index: number): string {
  let name = "";
  for (let left = index + 1; left > 0; left = Math.floor((left - 1) / 26)) {
    name = String.fromCharCode(65 + ((left - 1) % 26)) + name;
  }
  return name;
}

function cells(row: readonly string[], width: number, tag: "td"): HTMLElement[] {
  return Array.from({ length: width }, (_, i) => {
    const cell = element(tag, { text: row[i] ?? "" });
    if (/^[-+]?[\d.,\s]+%?$/.test(row[i] ?? "")) cell.className = "number";
    return cell;
  });
}

/**
 * `heading`: the first row names the columns; without one they are called A, B, C. `first`: number of the first row.
 * A click on a column's name sorts by it, up, down, then not; the filter keeps the rows that hold its words.
 */
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
  let by: Order | null = null;
  let shown = 0;
  let order: number[] = [];
  const body = element("tbody");
  const more = element("button", { class: "more" });
  more.type = "button";
  const count = element("span", { class: "summary" });
  count.setAttribute("role", "status");
  const filter = element("input");
  filter.type = "search";
  filter.placeholder = "Filter rows";
  filter.setAttribute("aria-label", "Filter rows");
  const grow = () => {
    const next = order.slice(shown, shown + ROWS_AT_ONCE);
    body.append(
      ...next.map((index) => {
        const number = element("th", { class: "row-number", text: String(index + first) });
        return element("tr", {}, number, ...cells(data[index] ?? [], width, "td"));
      }),
    );
    shown += next.length;
    more.hidden = shown >= order.length;
    more.textContent = `Show more rows (${(order.length - shown).toLocaleString()} left)`;
  };
  const arrange = () => {
    order = arranged(data, filter.value, by);
    shown = 0;
    body.replaceChildren();
    count.textContent = filter.value.trim()
      ? `${order.length.toLocaleString()} of ${data.length.toLocaleString()} rows`
      : "";
    heads.forEach((head, column) => {
      const way = by?.column === column ? (by.down ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", way);
    });
    grow();
  };
  const heads = Array.from({ length: width }, (_, column) => {
    const name = element("button", { class: "plain", text: names[column] || columnName(column) });
    name.type = "button";
    name.title = "Sort by this column";
    name.addEventListener("click", () => {
      if (by?.column !== column) by = { column, down: false };
      else by = by.down ? null : { column, down: true };
      arrange();
    });
    return element("th", { class: "sortable" }, name);
  });
  let wait: ReturnType<typeof setTimeout> | undefined;
  filter.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(arrange, 150);
  });
  more.addEventListener("click", grow);
  arrange();
  const corner = element("th", { class: "row-number" });
  const head = element("thead", {}, element("tr", {}, corner, ...heads));
  const table = element("table", { class: "grid" }, head, body);
  const scroll = element("div", { class: "grid-scroll" }, table, more);
  scroll.tabIndex = 0;
  const tools = element("div", { class: "grid-tools" }, filter, count);
  return element("div", { class: "grid-place" }, ...(data.length > 1 ? [tools] : []), scroll);
}

export function summary(rows: number, columns: number): HTMLElement {
  const counted = (count: number, word: string) =>
    `${count.toLocaleString()} ${word}${count === 1 ? "" : "s"}`;
  return element("p", {
    class: "summary",
    text: `${counted(rows, "row")}, ${counted(columns, "column")}`,
  });
}
