/** Presentations: the text and pictures of each slide, and its notes. Not the layout. */
import JSZip from "jszip";
import { element, Unshowable, type Viewer } from "./context";

const PICTURES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  svg: "image/svg+xml",
  webp: "image/webp",
};
const MOST_SLIDES = 500;

class Package {
  constructor(private readonly zip: JSZip) {}

  async xml(path: string): Promise<Document | null> {
    const text = await this.zip.file(path)?.async("string");
    return text === undefined ? null : new DOMParser().parseFromString(text, "application/xml");
  }

  /** Id to path of what a part refers to. */
  async relations(path: string): Promise<Map<string, string>> {
    const cut = path.lastIndexOf("/");
    const folder = path.slice(0, cut);
    const document = await this.xml(`${folder}/_rels/${path.slice(cut + 1)}.rels`);
    const found = new Map<string, string>();
    for (const node of document?.getElementsByTagName("Relationship") ?? []) {
      const target = node.getAttribute("Target") ?? "";
      const resolved = new URL(target, `file:///${folder}/`).pathname.slice(1);
      found.set(node.getAttribute("Id") ?? "", decodeURIComponent(resolved));
    }
    return found;
  }

  async picture(path: string): Promise<string | null> {
    const type = PICTURES[path.slice(path.lastIndexOf(".") + 1).toLowerCase()];
    const data = type ? await this.zip.file(path)?.async("arraybuffer") : undefined;
    return data ? URL.createObjectURL(new Blob([data], { type: type ?? "" })) : null;
  }
}

const tagged = (node: Document | Element, name: string): Element[] => [
  ...node.getElementsByTagNameNS("*", name),
];

function paragraphs(node: Element): { text: string; level: number }[] {
  return tagged(node, "p")
    .map((p) => ({
      text: tagged(p, "t")
        .map((t) => t.textContent)
        .join(""),
      level: Number(tagged(p, "pPr")[0]?.getAttribute("lvl") ?? 0),
    }))
    .filter((p) => p.text.trim());
}

function isTitle(shape: Element): boolean {
  return /title/i.test(tagged(shape, "ph")[0]?.getAttribute("type") ?? "");
}

async function slide(pack: Package, path: string, number: number): Promise<HTMLElement> {
  const document = await pack.xml(path);
  const relations = await pack.relations(path);
  const card = element(
    "article",
    { class: "slide" },
    element("span", { class: "slide-number", text: String(number) }),
  );
  if (!document) return card;
  const shapes = tagged(document, "sp");
  for (const shape of shapes.filter(isTitle)) {
    card.append(
      element("h2", {
        text: paragraphs(shape)
          .map((p) => p.text)
          .join(" "),
      }),
    );
  }
  for (const shape of shapes.filter((s) => !isTitle(s))) {
    for (const { text, level } of paragraphs(shape)) {
      const line = element("p", { text });
      line.style.marginInlineStart = `${Math.min(level, 8) * 1.5}em`;
      card.append(line);
    }
  }
  for (const table of tagged(document, "tbl")) {
    const rows = tagged(table, "tr").map((row) => {
      const cells = tagged(row, "tc").map((c) =>
        element("td", {
          text: paragraphs(c)
            .map((p) => p.text)
            .join("\n"),
        }),
      );
      return element("tr", {}, ...cells);
    });
    card.append(element("table", { class: "grid" }, ...rows));
  }
  for (const blip of tagged(document, "blip")) {
    const id = blip.getAttributeNS(
      "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
      "embed",
    );
    const source = await pack.picture(relations.get(id ?? "") ?? "");
    if (!source) continue;
    const picture = element("img");
    picture.src = source;
    picture.alt = "Picture on the slide";
    card.append(picture);
  }
  const notes = [...relations.values()].find((target) => target.includes("/notesSlides/"));
  const noted = notes ? await pack.xml(notes) : null;
  const said = noted
    ? tagged(noted, "sp")
        .flatMap(paragraphs)
        .map((p) => p.text)
        .filter((text) => !/^\d+$/.test(text))
    : [];
  if (said.length)
    card.append(
      element(
        "aside",
        {},
        element("strong", { text: "Notes" }),
        ...said.map((text) => element("p", { text })),
      ),
    );
  return card;
}

export const showSlides: Viewer = async (host, file) => {
  const pack = new Package(await JSZip.loadAsync(file.data));
  const presentation = await pack.xml("ppt/presentation.xml");
  if (!presentation) throw new Unshowable("This is not a presentation that can be read.");
  const relations = await pack.relations("ppt/presentation.xml");
  const paths = tagged(presentation, "sldId")
    .map((node) => relations.get(node.getAttribute("r:id") ?? "") ?? "")
    .filter(Boolean)
    .slice(0, MOST_SLIDES);
  host.append(
    element("p", {
      class: "summary",
      text: `${paths.length} slide${paths.length === 1 ? "" : "s"}: text and pictures, without their layout`,
    }),
  );
  for (const [i, path] of paths.entries()) host.append(await slide(pack, path, i + 1));
};
