/** A text to look at and to copy. */
import { writeClipboard } from "../common/clipboard";
import { shownName } from "../common/format";
import { IconButton } from "../ui/parts";
import { toast } from "../ui/toast";

export const shown = (text: string): string =>
  text
    .split("\n")
    .map((line) => line.split("\t").map(shownName).join("\t"))
    .join("\n");

export function copyText(text: string, said: string): void {
  void writeClipboard(text).then(
    () => toast(said),
    () => toast("This browser refused to copy."),
  );
}

export function CodeBlock(props: { text: string; label: string; copies: string }) {
  return (
    <div class="code-block">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <pre class="task" role="group" tabIndex={0} aria-label={props.label}>
        {shown(props.text)}
      </pre>
      <IconButton icon="copy" label={props.copies} onClick={() => copyText(props.text, "Copied.")} />
    </div>
  );
}
