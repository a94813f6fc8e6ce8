import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Addresses, type PageData } from "../src/common/page";
import { Uploads } from "../src/workspace/uploads";

const page = { root: "../../", assets: "", chat: "c", path: "", raw: "", view: false } as PageData;
const addresses = new Addresses(page, "https://h.example/preview/c/");

/** The uploads of the service: one name is one file. */
const there = new Map<string, Blob>();

class Request {
  upload = {};
  status = 201;
  onload = () => undefined;
  #url = "";

  open(_method: string, url: string): void {
    this.#url = url;
  }
  setRequestHeader(): void {}
  send(file: Blob): void {
    there.set(this.#url.slice("https://h.example/api/uploads/c/".length), file);
    queueMicrotask(() => this.onload());
  }
}

beforeEach(() => {
  there.clear();
  vi.stubGlobal("XMLHttpRequest", Request);
});
afterEach(() => vi.unstubAllGlobals());

/** What a browser makes of a picture that is pasted. */
const picture = (text: string) => new File([text], "image.png", { type: "image/png" });

async function uploaded(...files: [file: File, pasted: boolean][]): Promise<[string, string][]> {
  const uploads = new Uploads(addresses, () => undefined);
  for (const [file, pasted] of files) uploads.add([file], pasted);
  await vi.waitFor(() => expect(uploads.all.value.every((one) => one.state.value === "done")).toBe(true));
  return Promise.all([...there].map(async ([name, file]) => [name, await file.text()] as [string, string]));
}

test("a picture that is pasted takes the place of no other one", async () => {
  const found = await uploaded(
    [picture("one"), true],
    [picture("two"), true],
    [new File(["three"], ""), true],
  );
  expect(found.map(([, text]) => text)).toEqual(["one", "two", "three"]);
  expect(found.map(([name]) => name.replace(/\d+/g, "0"))).toEqual([
    "pasted-0-0.png",
    "pasted-0-0.png",
    "pasted-0-0",
  ]);
});

test("a file that has a name of its own keeps it", async () => {
  const found = await uploaded([picture("chosen"), false], [new File(["copied"], "plan.md"), true]);
  expect(found).toEqual([
    ["image.png", "chosen"],
    ["plan.md", "copied"],
  ]);
});
