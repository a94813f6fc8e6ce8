import { describe, expect, it } from "vitest";
import { doing, tail } from "../src/home/chats";
import { CLIENTS, SNIPPETS, shell } from "../src/home/clients";
import { parsePart } from "../src/home/feed";
import type { ChatCard } from "../src/home/home.generated";

const open = { url: "http://127.0.0.1:8081/mcp", key: "" };
const locked = { url: "https://box.example.com/mcp", key: 'it\'s "a" key' };

describe("what a person copies", () => {
  it.each(CLIENTS)("%s has the address, and the key only where there is one", (name) => {
    expect(SNIPPETS[name].text(open)).toContain(open.url);
    expect(SNIPPETS[name].text(open)).not.toContain("Bearer");
    expect(SNIPPETS[name].text(locked)).toContain("Bearer");
  });
  it.each(["claude-desktop", "cursor", "vscode"] as const)("%s is JSON, whatever the key", (name) => {
    const parsed: unknown = JSON.parse(SNIPPETS[name].text(locked));
    expect(JSON.stringify(parsed)).toContain(JSON.stringify(`Bearer ${locked.key}`).slice(1, -1));
  });
  it("allows plain HTTP only where the address needs it", () => {
    expect(SNIPPETS["claude-desktop"].text(open)).toContain("--allow-http");
    expect(SNIPPETS["claude-desktop"].text(locked)).not.toContain("--allow-http");
  });
  it("quotes for a shell", () => {
    expect(shell("a'b$c")).toBe("'a'\\''b$c'");
  });
});

const card: ChatCard = {
  chat: "one",
  state: "running",
  used: 0,
  tool: "bash_tool",
  description: "",
  running: false,
  since: 0,
  failed: false,
  output: "",
  picture: 0,
};

describe("a card", () => {
  it("says what the chat does", () => {
    expect(doing({ ...card, running: true, description: "Train\u202e it" })).toEqual({
      word: "Working",
      tone: "accent",
      line: "Train\ufffd it",
    });
    expect(doing(card)).toEqual({ word: "Idle", tone: "ok", line: "Ran a command" });
    expect(doing({ ...card, state: "stopped" }).word).toBe("Stopped");
  });
  it("shows the last lines that say something, as text", () => {
    expect(tail("a\n\n\u001b[31mb\u001b[0m\n<b>c\n", 2)).toBe("b\n<b>c");
  });
});

describe("an event", () => {
  it("that is none is dropped", () => {
    expect(parsePart("[]")).toBeNull();
    expect(parsePart("{")).toBeNull();
    expect(parsePart('{"now":1}')).toEqual({ now: 1 });
  });
});
