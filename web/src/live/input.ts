/** From the person's events to the channel's input messages: pure, so that each rule has its test. */
import type { Button, FromViewer } from "./protocol";

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Where in the page a point of the screen is: the picture is scaled, its shape is kept. */
export function toPage(
  clientX: number,
  clientY: number,
  box: Box,
  w: number,
  h: number,
): { x: number; y: number } {
  const clamp = (value: number, most: number) => Math.min(Math.max(value, 0), most - 1);
  const x = box.width > 0 ? ((clientX - box.left) / box.width) * w : 0;
  const y = box.height > 0 ? ((clientY - box.top) / box.height) * h : 0;
  return { x: Math.round(clamp(x, w) * 10) / 10, y: Math.round(clamp(y, h) * 10) / 10 };
}

interface Modified {
  altKey: boolean;
  ctrlKey: boolean;
  metaKey: boolean;
  shiftKey: boolean;
}

export function modifiers(event: Modified): number {
  return (
    (event.altKey ? 1 : 0) + (event.ctrlKey ? 2 : 0) + (event.metaKey ? 4 : 0) + (event.shiftKey ? 8 : 0)
  );
}

const BUTTONS: Button[] = ["left", "middle", "right", "back", "forward"];

export function button(number: number): Button {
  return BUTTONS[number] ?? "none";
}

/** Wheel distances in pixels: browsers also count in lines and pages. */
export function wheelPixels(delta: number, mode: number, page: number): number {
  return Math.round(mode === 1 ? delta * 40 : mode === 2 ? delta * page : delta);
}

interface Key extends Modified {
  type: string;
  key: string;
  code: string;
  location: number;
  repeat: boolean;
  isComposing: boolean;
}

/** What a key press leads to. `typed`: the character comes as text later, so the event must go its way. */
export type KeyPlan =
  | { do: "ignore" }
  | { do: "send"; message: FromViewer; typed: boolean }
  | { do: "paste" }
  | { do: "copy"; cut: boolean };

/**
 * The sandbox's browser runs on Linux, where shortcuts are on Ctrl: a person on a Mac has them on Cmd.
 * Cmd+C is Ctrl+C there; the Meta key itself means nothing to it.
 */
export function keyPlan(event: Key, mac: boolean): KeyPlan {
  // Dead keys and input methods: the text comes by composition events.
  if (event.isComposing || event.key === "Process" || event.key === "Dead" || event.key === "Unidentified") {
    return { do: "ignore" };
  }
  if (mac && event.key === "Meta") return { do: "ignore" };
  const command = mac ? event.metaKey : event.ctrlKey;
  const letter = event.key.length === 1 ? event.key.toLowerCase() : "";
  if (command && !event.altKey && !event.shiftKey) {
    if (letter === "v") return event.type === "keydown" ? { do: "paste" } : { do: "ignore" };
    if (letter === "c" || letter === "x") {
      return event.type === "keydown" ? { do: "copy", cut: letter === "x" } : { do: "ignore" };
    }
  }
  const held = mac && event.metaKey ? { ...pick(event), metaKey: false, ctrlKey: true } : pick(event);
  const message: FromViewer = {
    type: "key",
    event: event.type === "keydown" ? "down" : "up",
    key: event.key,
    code: event.code,
    location: event.location,
    modifiers: modifiers(held),
    repeat: event.repeat,
  };
  // AltGr is Ctrl+Alt on Windows and types characters such as @ and €.
  const altGr = event.altKey && event.ctrlKey;
  const shortcut = (held.ctrlKey || held.metaKey || (event.altKey && !mac)) && !altGr;
  return { do: "send", message, typed: event.type === "keydown" && letter !== "" && !shortcut };
}

function pick(event: Modified): Modified {
  return { altKey: event.altKey, ctrlKey: event.ctrlKey, metaKey: event.metaKey, shiftKey: event.shiftKey };
}

/** What a person writes in the address bar, as an address; null when it is none. */
export function toAddress(text: string): string | null {
  const trimmed = text.trim();
  if (/^(https?|file):\/\//i.test(trimmed) || trimmed === "about:blank") return trimmed;
  if (trimmed.startsWith("/")) return `file://${trimmed}`;
  // A name without a dot, or a number, is a server inside the sandbox: those speak plain HTTP.
  if (/^([\w-]+|\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:]+\]):\d+([/?#]|$)/i.test(trimmed))
    return `http://${trimmed}`;
  if (/^(localhost|\d{1,3}(\.\d{1,3}){3})([/?#]|$)/i.test(trimmed)) return `http://${trimmed}`;
  if (/^[^\s/?#@:]+\.[^\s/?#@.]{2,}([/?#]|$)/.test(trimmed)) return `https://${trimmed}`;
  return null;
}
