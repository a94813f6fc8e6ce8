/** Work that may be long, away from the page: comparing texts, and reading what was meant for a terminal. */
import { lineDiff } from "./linediff";
import type { Answer, Question } from "./work";

// The terminal without a screen looks for one name in `window`, which a worker does not have.
Object.assign(globalThis, { window: globalThis });

const answer = (message: Answer) => postMessage(message);

addEventListener("message", ({ data }: MessageEvent<Question>) => {
  void (async () => {
    try {
      if (data.kind === "diff") answer({ id: data.id, result: lineDiff(data.before, data.after) });
      else {
        const { terminalRows } = await import("./ansi");
        answer({ id: data.id, result: await terminalRows(data.text) });
      }
    } catch (error) {
      answer({ id: data.id, problem: String(error).slice(0, 200) });
    }
  })();
});
