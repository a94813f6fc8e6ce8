/** Word documents, laid out as pages. */
import { renderAsync } from "docx-preview";
import type { Viewer } from "./context";

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
};
