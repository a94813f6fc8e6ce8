/** Word documents, laid out as pages. */
import { renderAsync } from "docx-preview";
import type { Viewer } from "./context";

/** Word takes the signs of lists from fonts of its own, at code points that no other font has. */
const SIGNS: Record<string, string> = { "\uf0a7": "▪", "\uf0b7": "•", "\uf0d8": "➢", "\uf0fc": "✓" };

export const showDocx: Viewer = async (host, file) => {
  await renderAsync(new Blob([file.data]), host, undefined, {
    className: "docx",
    useBase64URL: true,
    renderHeaders: true,
    renderFooters: true,
    renderFootnotes: true,
    ignoreLastRenderedPageBreak: false,
    renderAltChunks: false,
  });
  for (const style of host.querySelectorAll("style"))
    style.textContent = (style.textContent ?? "").replace(
      /[\uf0a7\uf0b7\uf0d8\uf0fc]/g,
      (sign) => SIGNS[sign] ?? "•",
    );
};
