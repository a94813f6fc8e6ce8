/** The chats that were used last, as cards: what each does now, and the last that can be seen of it. */
import { ago, plainText, shownName } from "../common/format";
import { Icon } from "../ui/icon";
import type { ChatCard } from "./home.generated";

const VERBS: Record<string, string> = {
  bash_tool: "Ran a command",
  view: "Looked at a file",
  create_file: "Wrote a file",
  str_replace: "Edited a file",
  sub_agent: "Ran a coding agent",
};

/** What a chat does now, in a line. */
export function doing(card: ChatCard): { word: string; tone: string; line: string } {
  const line = shownName(card.description || VERBS[card.tool] || "");
  if (card.running) return { word: "Working", tone: "accent", line };
  if (card.state === "running") return { word: "Idle", tone: "ok", line };
  if (card.state === "failed") return { word: "Failed", tone: "bad", line };
  return { word: card.state === "starting" ? "Starting" : "Stopped", tone: "", line };
}

/** The last lines that say something. */
export function tail(output: string, lines = 8): string {
  return plainText(output)
    .split("\n")
    .filter((line) => line.trim())
    .slice(-lines)
    .join("\n");
}

function Card({ card, root }: { card: ChatCard; root: URL }) {
  const { word, tone, line } = doing(card);
  const name = encodeURIComponent(card.chat);
  const output = tail(card.output);
  return (
    <li>
      <a class="card chat-card" href={new URL(`preview/${name}/`, root).href}>
        <span class={`chat-picture ${card.picture > 0 || !output ? "" : "printed"}`}>
          {card.picture > 0 ? (
            <img
              src={new URL(`api/home/pictures/${name}?at=${card.picture}`, root).href}
              alt=""
              decoding="async"
            />
          ) : output ? (
            <span class="chat-output">{output}</span>
          ) : (
            <Icon name="terminal" />
          )}
        </span>
        <span class="chat-name">
          <strong class="cut grow">{shownName(card.chat)}</strong>
          <span class={`chip ${tone}`}>{word}</span>
        </span>
        <span class="muted cut">{line || "No call yet"}</span>
        <span class="muted small">{ago(card.used)}</span>
      </a>
    </li>
  );
}

export function Chats({ chats, root }: { chats: readonly ChatCard[]; root: URL }) {
  if (!chats.length) return null;
  return (
    <section aria-labelledby="chats-title">
      <h2 id="chats-title">Recent chats</h2>
      <ul class="chat-cards">
        {chats.map((card) => (
          <Card key={card.chat} card={card} root={root} />
        ))}
      </ul>
    </section>
  );
}
