/** The icon of a file, by what its name says that it is. */
import { type Kind, kindOfName } from "../common/kinds";
import type { IconName } from "../ui/icon";

const ICONS: Record<Kind, IconName> = {
  text: "text",
  markdown: "text",
  diagram: "code",
  html: "browser",
  image: "picture",
  svg: "picture",
  pdf: "pages",
  table: "table",
  sheet: "table",
  docx: "text",
  slides: "slides",
  office: "pages",
  audio: "sound",
  video: "film",
  notebook: "code",
  archive: "archive",
  hex: "file",
};
const CODE =
  /\.(py|pyi|[cm]?[jt]sx?|css|scss|sql|sh|bash|rb|go|rs|c|h|cc|cpp|hpp|cs|java|kt|swift|php|pl|lua|r|jl|hs|json|ya?ml|toml|xml)$/i;

export function iconOf(name: string): IconName {
  if (CODE.test(name)) return "code";
  const kind = kindOfName(name);
  return kind ? ICONS[kind] : "file";
}
