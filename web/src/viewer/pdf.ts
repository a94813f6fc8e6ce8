/** PDF: each page is drawn when it comes near the screen; its text can be selected and searched. */
// The build for browsers that are a few years old: the other one draws no page in Firefox 140, an ESR.
import { getDocument, type PDFDocumentProxy, PDFWorker, TextLayer } from "pdfjs-dist/legacy/build/pdf.mjs";
// An opaque origin cannot start a worker from an address: this one is built as a classic script and started from a blob.
import Worker from "pdfjs-dist/legacy/build/pdf.worker.min.mjs?worker&inline";
import { type Context, element, type Viewer } from "./context";
import { type Match, places, spans } from "./pdfsearch";
import "./pdf.css";

const ZOOMS = [0.5, 0.75, 1, 1.25, 1.5, 2, 3];
/** Larger canvases fail on phones. */
const MOST_PIXELS = 16_000_000;
/** Pages of which a search reads the text, and matches that it counts. */
const MOST_SEARCHED = 3000;
const MOST_MATCHES = 5000;

/** pdf.js asks for its own data by kind and name; the frame has no network, so the page fetches it. */
function dataFactory(context: Context) {
  const folders: Record<string, string> = {
    cMapUrl: "cmaps",
    standardFontDataUrl: "standard_fonts",
    wasmUrl: "wasm",
  };
  return class {
    fetch({ kind, filename }: { kind: string; filename: string }): Promise<Uint8Array> {
      return context.asset(`pdf/${folders[kind] ?? kind}/${filename}`);
    }
  };
}

class Pages {
  readonly element = element("div", { class: "pdf-pages" });
  #zoom = 1;
  readonly #drawn = new WeakSet<Element>();
  readonly #texts = new Map<number, string[]>();
  readonly #layers = new Map<number, HTMLElement[]>();
  #sought = "";
  #current: Match | null = null;
  readonly #near: IntersectionObserver;

  constructor(
    private readonly document: PDFDocumentProxy,
    private readonly first: { width: number; height: number },
  ) {
    this.#near = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "600px 0px" });
    for (let number = 1; number <= document.numPages; number++) {
      const place = element("section", { class: "pdf-page" });
      place.dataset.number = String(number);
      place.setAttribute("aria-label", `Page ${number}`);
      this.element.append(place);
    }
  }

  /** Pages have the size of the first until they are drawn. */
  layout(zoom: number, width: number): void {
    this.#zoom = zoom * Math.min(1.6, Math.max(0.2, (width - 32) / this.first.width));
    for (const place of this.element.children as HTMLCollectionOf<HTMLElement>) {
      this.#drawn.delete(place);
      this.#layers.delete(Number(place.dataset.number));
      place.replaceChildren();
      place.style.width = `${this.first.width * this.#zoom}px`;
      place.style.height = `${this.first.height * this.#zoom}px`;
      this.#near.unobserve(place);
      this.#near.observe(place);
    }
  }

  #seen(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      if (entry.isIntersecting && !this.#drawn.has(entry.target)) {
        this.#drawn.add(entry.target);
        void this.#draw(entry.target as HTMLElement).catch(() => this.#drawn.delete(entry.target));
      }
    }
  }

  async #draw(place: HTMLElement): Promise<void> {
    const zoom = this.#zoom;
    const page = await this.document.getPage(Number(place.dataset.number));
    const viewport = page.getViewport({ scale: zoom });
    const density = Math.min(devicePixelRatio, Math.sqrt(MOST_PIXELS / (viewport.width * viewport.height)));
    const canvas = element("canvas");
    canvas.width = Math.floor(viewport.width * density);
    canvas.height = Math.floor(viewport.height * density);
    await page.render({ canvas, viewport, transform: [density, 0, 0, density, 0, 0] }).promise;
    if (zoom !== this.#zoom) return;
    const text = element("div", { class: "textLayer" });
    place.style.width = `${viewport.width}px`;
    place.style.height = `${viewport.height}px`;
    place.style.setProperty("--total-scale-factor", String(zoom));
    place.replaceChildren(canvas, text);
    const layer = new TextLayer({ textContentSource: page.streamTextContent(), container: text, viewport });
    await layer.render();
    const number = Number(place.dataset.number);
    this.#texts.set(number, layer.textContentItemsStr);
    this.#layers.set(number, layer.textDivs);
    this.#mark(number);
  }

  async #text(number: number): Promise<string[]> {
    const known = this.#texts.get(number);
    if (known) return known;
    const content = await (await this.document.getPage(number)).getTextContent();
    const text = content.items.flatMap((item) => ("str" in item ? [item.str] : []));
    this.#texts.set(number, text);
    return text;
  }

  /** Every place of the text, page by page; `stop` says that another search began. */
  async search(sought: string, stop: () => boolean): Promise<Match[]> {
    this.#sought = sought;
    this.#current = null;
    for (const number of this.#layers.keys()) this.#mark(number);
    const found: Match[] = [];
    const last = Math.min(this.document.numPages, MOST_SEARCHED);
    for (let page = 1; sought && page <= last && found.length < MOST_MATCHES && !stop(); page++) {
      const text = (await this.#text(page)).join("").toLowerCase();
      found.push(...places(text, sought.toLowerCase()).map((_, nth) => ({ page, nth })));
    }
    return found.slice(0, MOST_MATCHES);
  }

  show(match: Match): void {
    const before = this.#current;
    this.#current = match;
    if (before) this.#mark(before.page);
    this.#mark(match.page);
    const place = this.element.children[match.page - 1];
    const mark = place?.querySelector("mark.current");
    (mark ?? place)?.scrollIntoView({ block: mark ? "center" : "start" });
  }

  /** Marks the matches in the text over a page that is drawn. */
  #mark(number: number): void {
    const divs = this.#layers.get(number);
    const pieces = this.#texts.get(number);
    if (!divs || !pieces) return;
    divs.forEach((div, i) => {
      if (div.querySelector("mark")) div.textContent = pieces[i] ?? "";
    });
    const bySpan = Map.groupBy(this.#sought ? spans(pieces, this.#sought) : [], (span) => span.piece);
    for (const [piece, parts] of bySpan) {
      const [div, text] = [divs[piece], pieces[piece] ?? ""];
      if (!div) continue;
      const made: (Node | string)[] = [];
      let at = 0;
      for (const { from, to, nth } of parts) {
        const current = this.#current?.page === number && this.#current.nth === nth;
        made.push(
          text.slice(at, from),
          element("mark", { class: current ? "current" : "", text: text.slice(from, to) }),
        );
        at = to;
      }
      div.replaceChildren(...made, text.slice(at));
    }
    if (this.#current?.page === number)
      this.element.children[number - 1]?.querySelector("mark.current")?.scrollIntoView({ block: "center" });
  }
}

/** A field, and the ways from one place to the next. */
function searchTools(pages: Pages): HTMLElement {
  const field = element("input");
  field.type = "search";
  field.placeholder = "Search in the document";
  field.setAttribute("aria-label", "Search in the document");
  const said = element("span", { class: "summary" });
  said.setAttribute("role", "status");
  let found: Match[] = [];
  let at = -1;
  let turn = 0;
  const tell = () => {
    if (!field.value.trim()) said.textContent = "";
    else said.textContent = found.length ? `${at + 1} of ${found.length.toLocaleString()}` : "Not found";
  };
  const go = (by: number) => {
    if (!found.length) return;
    at = (at + by + found.length) % found.length;
    const match = found[at];
    if (match) pages.show(match);
    tell();
  };
  const search = async () => {
    turn += 1;
    const mine = turn;
    said.textContent = field.value.trim() ? "Searching…" : "";
    found = [];
    at = -1;
    const all = await pages.search(field.value.trim(), () => mine !== turn);
    if (mine !== turn) return;
    found = all;
    go(1);
    tell();
  };
  let wait: ReturnType<typeof setTimeout> | undefined;
  field.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => void search(), 200);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "f" && field.isConnected) {
      event.preventDefault();
      field.select();
    }
  });
  const button = (text: string, label: string, by: number) => {
    const made = element("button", { text });
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", () => go(by));
    return made;
  };
  return element(
    "span",
    { class: "pdf-search" },
    field,
    button("↑", "Previous place", -1),
    button("↓", "Next place", 1),
    said,
  );
}

function tools(pages: Pages, host: HTMLElement, count: number): HTMLElement {
  let index = ZOOMS.indexOf(1);
  const where = element("span", { class: "summary", text: `${count} page${count === 1 ? "" : "s"}` });
  const zoom = element("span", { class: "summary" });
  const apply = () => {
    zoom.textContent = `${(ZOOMS[index] ?? 1) * 100} %`;
    pages.layout(ZOOMS[index] ?? 1, host.clientWidth);
  };
  const button = (text: string, label: string, by: number) => {
    const made = element("button", { text });
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", () => {
      index = Math.min(ZOOMS.length - 1, Math.max(0, index + by));
      apply();
    });
    return made;
  };
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(host.clientWidth - width) < 8) return;
    width = host.clientWidth;
    apply();
  }).observe(host);
  return element(
    "div",
    { class: "pdf-tools" },
    where,
    button("−", "Smaller", -1),
    zoom,
    button("+", "Larger", 1),
    searchTools(pages),
  );
}

export const showPdf: Viewer = async (host, file, context) => {
  const worker = PDFWorker.create({ port: new Worker() });
  const document = await getDocument({
    data: file.data,
    worker,
    // pdf.js wants the addresses to be set, though all goes through the factory.
    cMapUrl: "cmaps/",
    standardFontDataUrl: "standard_fonts/",
    wasmUrl: "wasm/",
    useWorkerFetch: false,
    BinaryDataFactory: dataFactory(context),
    enableXfa: false,
    stopAtErrors: false,
  }).promise;
  const { width, height } = (await document.getPage(1)).getViewport({ scale: 1 });
  const pages = new Pages(document, { width, height });
  host.append(tools(pages, host, document.numPages), pages.element);
};
