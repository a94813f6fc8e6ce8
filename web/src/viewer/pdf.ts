/** PDF: each page is drawn when it comes near the screen; its text can be selected and searched. */
import { getDocument, type PDFDocumentProxy, PDFWorker, TextLayer } from "pdfjs-dist";
// An opaque origin cannot start a worker from an address: this one is built as a classic script and started from a blob.
import Worker from "pdfjs-dist/build/pdf.worker.min.mjs?worker&inline";
import { type Context, element, type Viewer } from "./context";
import "./pdf.css";

const ZOOMS = [0.5, 0.75, 1, 1.25, 1.5, 2, 3];
/** Larger canvases fail on phones. */
const MOST_PIXELS = 16_000_000;

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
    await new TextLayer({ textContentSource: page.streamTextContent(), container: text, viewport }).render();
  }
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
