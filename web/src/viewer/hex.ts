/** Bytes of anything else. */
import { bytes } from "../common/format";
import { element, type Viewer } from "./context";

const AT_ONCE = 32 * 1024;

export function hexLines(data: Uint8Array, offset: number): string {
  const lines: string[] = [];
  for (let row = 0; row < data.length; row += 16) {
    const part = [...data.subarray(row, row + 16)];
    const hex = part.map((b, i) => b.toString(16).padStart(2, "0") + (i === 7 ? " " : "")).join(" ");
    const text = part.map((b) => (b >= 0x20 && b < 0x7f ? String.fromCharCode(b) : "·")).join("");
    lines.push(`${(offset + row).toString(16).padStart(8, "0")}  ${hex.padEnd(49)}  ${text}\n`);
  }
  return lines.join("");
}

export const showHex: Viewer = (host, file) => {
  const lines = element("pre", { class: "hex" });
  lines.tabIndex = 0;
  const more = element("button", { class: "more", text: "Show more" });
  more.type = "button";
  let shown = 0;
  const grow = () => {
    lines.append(hexLines(file.data.subarray(shown, shown + AT_ONCE), shown));
    shown = Math.min(file.data.length, shown + AT_ONCE);
    more.hidden = shown >= file.data.length;
  };
  more.addEventListener("click", grow);
  grow();
  const first =
    file.data.length < file.size ? `, of which the first ${bytes(file.data.length)} can be shown` : "";
  host.append(
    element("p", { class: "summary", text: `${bytes(file.size)} that are not text${first}` }),
    lines,
    more,
  );
};
