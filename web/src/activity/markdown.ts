/** The calls as Markdown, for a person who takes them elsewhere. */
import { diffOf } from "../common/diff";
import { type Call, codeOf, editOf, gist, options, stateOf, task } from "../workspace/calls";

/** A block that nothing in the text can end. */
function fenced(content: string, language = ""): string {
  const longest = Math.max(2, ...[...content.matchAll(/`+/g)].map((m) => m[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${content}${content.endsWith("\n") ? "" : "\n"}${fence}`;
}

function callAsMarkdown(call: Call): string {
  const title = (call.description || gist(call)).replace(/\s+/g, " ");
  const end = [stateOf(call), codeOf(call), call.seconds === null ? "" : `${call.seconds} s`];
  const edit = editOf(call);
  const parts = [
    `## ${call.tool}${title ? `: ${title}` : ""}`,
    end.filter(Boolean).join(", "),
    task(call) && fenced(task(call), call.arguments.command === undefined ? "" : "bash"),
    options(call)
      .map((option) => `- ${option.replace(/\s+/g, " ")}`)
      .join("\n"),
    edit &&
      fenced(
        diffOf(edit.before, edit.after)
          .map((line) => `${line.sign}${line.text}`)
          .join("\n"),
        "diff",
      ),
    call.output && fenced(call.output),
    call.result && fenced(call.result),
    call.notes.join("\n\n"),
  ];
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}

export function asMarkdown(calls: readonly Call[]): string {
  return calls
    .filter((call) => call.note === undefined)
    .map(callAsMarkdown)
    .join("\n");
}
