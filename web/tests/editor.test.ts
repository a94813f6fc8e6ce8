/** What a person typed and did not save is found again, whatever came between. */
import { type Signal, signal } from "@preact/signals";
import type { ComponentChild, VNode } from "preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Addresses, type PageData } from "../src/common/page";
import { Editor } from "../src/workspace/editor";
import { FileQuestions } from "../src/workspace/fileactions";
import { FilesPanel, type FilesSpace } from "../src/workspace/filespanel";
import { type EditorPort, ViewerFrame } from "../src/workspace/frame";

const hooks = vi.hoisted(() => {
  // The theme asks for it as soon as it is loaded.
  globalThis.matchMedia ??= (() => ({ matches: false, addEventListener: () => undefined })) as never;
  return { kept: [] as unknown[], at: 0, ends: [] as (() => void)[] };
});

/** What one component keeps from one time that it is drawn to the next: enough of a page to draw the editor on. */
function once<T>(make: () => T): T {
  const at = hooks.at++;
  if (!(at in hooks.kept)) hooks.kept[at] = make();
  return hooks.kept[at] as T;
}

vi.mock("preact/hooks", async (original) => ({
  ...(await original<object>()),
  useMemo: once,
  useRef: (first: unknown) => once(() => ({ current: first })),
  useEffect: (begin: () => unknown) =>
    once(() => {
      const end = begin();
      if (typeof end === "function") hooks.ends.push(end as () => void);
    }),
}));
vi.mock("@preact/signals", async (original) => ({
  ...(await original<object>()),
  useSignal: (first: unknown): Signal => once(() => signal(first)),
}));
vi.mock("../src/ui/toast", () => ({ toast: () => undefined }));

const page = { root: "../../", assets: "", chat: "c", path: "", raw: "", view: false } as PageData;
const addresses = new Addresses(page, "https://h.example/preview/c/");

/** The part of what was drawn that is made by this component. */
function found<P>(
  node: ComponentChild | ComponentChild[],
  made: (props: P) => unknown,
): (P & { children?: unknown }) | null {
  for (const one of Array.isArray(node) ? node : [node]) {
    if (!one || typeof one !== "object" || !("props" in one)) continue;
    const { type, props } = one as VNode<P>;
    const below = type === made ? props : found((props as { children?: ComponentChild }).children, made);
    if (below) return below;
  }
  return null;
}

/** A person at the editor of one file. */
class Person {
  text = "";

  constructor(private readonly path: string) {}

  #draw() {
    hooks.at = 0;
    const drawn = Editor({
      addresses,
      assets: "",
      path: this.path,
      version: "",
      onClose: () => undefined,
      onSaved: () => undefined,
    });
    return found(drawn, ViewerFrame);
  }

  get #port(): EditorPort {
    return this.#draw()?.editor as EditorPort;
  }

  /** The text that the editor begins with. */
  async open(): Promise<string> {
    hooks.kept = [];
    this.#draw();
    await vi.advanceTimersByTimeAsync(0);
    this.text = new TextDecoder().decode(this.#draw()?.show.bytes);
    this.#port.read = async () => this.text;
    return this.text;
  }

  type(text: string): void {
    this.text += text;
    this.#port.onChanged();
  }

  save(): void {
    this.#port.onSave();
  }

  /** Another file is shown in its place. */
  leave(): void {
    this.#port.read = null;
    for (const end of hooks.ends.splice(0)) end();
  }
}

let put: (init: RequestInit) => Promise<Response>;
const saves: (string | null)[] = [];

beforeEach(() => {
  vi.useFakeTimers();
  saves.length = 0;
  vi.stubGlobal("addEventListener", () => undefined);
  vi.stubGlobal("fetch", async (_url: string, init: RequestInit) => {
    if (init.method !== "PUT") return new Response("old ", { headers: { etag: '"1"' } });
    saves.push(new Headers(init.headers).get("if-match"));
    return await put(init);
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const saved = () => Response.json({ path: "", size: 1, etag: '"2"', id: "" });
const later = <T>(answer: T) => new Promise<T>((resolve) => setTimeout(() => resolve(answer), 1_000));

test.each([
  ["the service is away", () => later(new Response("", { status: 503 }))],
  ["somebody else has changed the file", () => later(new Response("", { status: 412 }))],
])("a text that could not be saved is found again: %s", async (why, answer) => {
  put = answer;
  const person = new Person(`failed-${why}.md`);
  expect(await person.open()).toBe("old ");
  person.type("new");
  person.save();
  await vi.advanceTimersByTimeAsync(2_000);
  person.leave();
  expect(await person.open()).toBe("old new");
});

test("a text is found again when who types it is interrupted", async () => {
  const person = new Person("typed.md");
  await person.open();
  for (let n = 0; n < 50; n += 1) {
    person.type("x");
    await vi.advanceTimersByTimeAsync(100);
  }
  person.leave();
  expect((await person.open()).length).toBeGreaterThan(45);
});

test("what is typed while the rest is saved goes over the version that was saved", async () => {
  put = () => later(saved());
  const person = new Person("meanwhile.md");
  await person.open();
  person.type("a");
  person.save();
  await vi.advanceTimersByTimeAsync(100);
  person.type("b");
  await vi.advanceTimersByTimeAsync(2_000);
  person.leave();
  expect(await person.open()).toBe("old ab");
  person.save();
  await vi.advanceTimersByTimeAsync(2_000);
  expect(saves).toEqual(['"1"', '"2"']);
  person.leave();
  expect(await person.open()).toBe("old "); // what is saved is read again
});

/** The panel in which files are renamed and deleted. */
function panel() {
  hooks.kept = [];
  hooks.at = 0;
  const files = { round: signal(0), refresh: async () => undefined };
  const state = { openPath: signal(""), filesView: signal("files") };
  return found(FilesPanel({ space: { addresses, files, ...state } as never as FilesSpace }), FileQuestions);
}

test("a text goes along with its file, and with the folder of its file", async () => {
  const person = new Person("folder/a.md");
  await person.open();
  person.type("new");
  await vi.advanceTimersByTimeAsync(1_000);
  person.leave();
  panel()?.onRenamed("folder", "other");
  panel()?.onRenamed("other/a.md", "other/b.md");
  expect(await new Person("folder/a.md").open()).toBe("old ");
  expect(await new Person("other/b.md").open()).toBe("old new");
  panel()?.onGone("other");
  expect(await new Person("other/b.md").open()).toBe("old ");
});
