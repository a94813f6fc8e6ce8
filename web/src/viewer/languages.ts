/** Syntax of the languages that are coloured, each loaded when the first such file is shown. */
import { type Language, type LanguageSupport, StreamLanguage, type StreamParser } from "@codemirror/language";
import { ending } from "../common/kinds";

type Loader = () => Promise<Language>;

const of =
  (load: () => Promise<LanguageSupport>): Loader =>
  async () =>
    (await load()).language;
const old =
  (load: () => Promise<StreamParser<unknown>>): Loader =>
  async () =>
    StreamLanguage.define(await load());

const clike = () => import("@codemirror/legacy-modes/mode/clike");

const LOADERS: [names: string, load: Loader][] = [
  ["py pyi python python3 ipython", of(async () => (await import("@codemirror/lang-python")).python())],
  [
    "js mjs cjs jsx javascript node",
    of(async () => (await import("@codemirror/lang-javascript")).javascript({ jsx: true })),
  ],
  [
    "ts tsx mts typescript",
    of(async () => (await import("@codemirror/lang-javascript")).javascript({ jsx: true, typescript: true })),
  ],
  ["json jsonl ndjson ipynb webmanifest", of(async () => (await import("@codemirror/lang-json")).json())],
  ["html htm xhtml vue svelte", of(async () => (await import("@codemirror/lang-html")).html())],
  ["css scss less", of(async () => (await import("@codemirror/lang-css")).css())],
  ["md markdown mdown mkd", of(async () => (await import("@codemirror/lang-markdown")).markdown())],
  ["xml svg xsd xsl rss plist", of(async () => (await import("@codemirror/lang-xml")).xml())],
  ["yaml yml", of(async () => (await import("@codemirror/lang-yaml")).yaml())],
  ["sql", of(async () => (await import("@codemirror/lang-sql")).sql())],
  ["rs rust", of(async () => (await import("@codemirror/lang-rust")).rust())],
  ["go golang", of(async () => (await import("@codemirror/lang-go")).go())],
  ["java", of(async () => (await import("@codemirror/lang-java")).java())],
  ["c h cc cpp hpp cxx c++", of(async () => (await import("@codemirror/lang-cpp")).cpp())],
  ["php", of(async () => (await import("@codemirror/lang-php")).php())],
  ["cs csharp", old(async () => (await clike()).csharp)],
  ["kt kts kotlin gradle", old(async () => (await clike()).kotlin)],
  ["scala", old(async () => (await clike()).scala)],
  ["dart", old(async () => (await clike()).dart)],
  [
    "sh bash zsh fish shell console",
    old(async () => (await import("@codemirror/legacy-modes/mode/shell")).shell),
  ],
  ["dockerfile", old(async () => (await import("@codemirror/legacy-modes/mode/dockerfile")).dockerFile)],
  ["toml", old(async () => (await import("@codemirror/legacy-modes/mode/toml")).toml)],
  [
    "ini cfg conf properties env",
    old(async () => (await import("@codemirror/legacy-modes/mode/properties")).properties),
  ],
  ["rb ruby gemfile rakefile", old(async () => (await import("@codemirror/legacy-modes/mode/ruby")).ruby)],
  ["lua", old(async () => (await import("@codemirror/legacy-modes/mode/lua")).lua)],
  ["pl pm perl", old(async () => (await import("@codemirror/legacy-modes/mode/perl")).perl)],
  ["r", old(async () => (await import("@codemirror/legacy-modes/mode/r")).r)],
  ["jl julia", old(async () => (await import("@codemirror/legacy-modes/mode/julia")).julia)],
  ["swift", old(async () => (await import("@codemirror/legacy-modes/mode/swift")).swift)],
  ["hs haskell", old(async () => (await import("@codemirror/legacy-modes/mode/haskell")).haskell)],
  ["diff patch", old(async () => (await import("@codemirror/legacy-modes/mode/diff")).diff)],
  ["tex latex sty", old(async () => (await import("@codemirror/legacy-modes/mode/stex")).stex)],
  ["ps1 powershell", old(async () => (await import("@codemirror/legacy-modes/mode/powershell")).powerShell)],
  ["cmake", old(async () => (await import("@codemirror/legacy-modes/mode/cmake")).cmake)],
  ["nginx", old(async () => (await import("@codemirror/legacy-modes/mode/nginx")).nginx)],
  ["proto", old(async () => (await import("@codemirror/legacy-modes/mode/protobuf")).protobuf)],
];

const BY_NAME = new Map(LOADERS.flatMap(([names, load]) => names.split(" ").map((n) => [n, load] as const)));

export async function languageNamed(name: string): Promise<Language | null> {
  return (await BY_NAME.get(name.toLowerCase())?.()) ?? null;
}

export async function languageOfFile(name: string): Promise<Language | null> {
  return (await languageNamed(ending(name))) ?? (await languageNamed(name));
}
