/** The messages of ttyd: one leading character says what the rest is. */

export const SUBPROTOCOL = "tty";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Longest piece of input in one message: a large paste goes in several. */
export const INPUT_PIECE = 16 * 1024;

export type TerminalMessage =
  | { kind: "output"; data: Uint8Array }
  | { kind: "title"; title: string }
  | { kind: "preferences"; text: string }
  | { kind: "unknown" };

export function hello(columns: number, rows: number): Uint8Array<ArrayBuffer> {
  return encoder.encode(JSON.stringify({ AuthToken: "", columns, rows }));
}

export function resize(columns: number, rows: number): Uint8Array<ArrayBuffer> {
  return encoder.encode(`1${JSON.stringify({ columns, rows })}`);
}

function tagged(data: Uint8Array): Uint8Array<ArrayBuffer> {
  const message = new Uint8Array(data.length + 1);
  message[0] = 0x30;
  message.set(data, 1);
  return message;
}

/** Text for the terminal, as UTF-8, in pieces that end between characters. */
export function input(text: string): Uint8Array<ArrayBuffer>[] {
  const all = encoder.encode(text);
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  let start = 0;
  while (start < all.length) {
    let end = Math.min(all.length, start + INPUT_PIECE);
    while (end < all.length && ((all[end] ?? 0) & 0xc0) === 0x80) end -= 1;
    pieces.push(tagged(all.subarray(start, end)));
    start = end;
  }
  return pieces;
}

/** Bytes that are not text, such as old-style mouse reports: one character is one byte. */
export function binaryInput(text: string): Uint8Array<ArrayBuffer> {
  return tagged(Uint8Array.from(text, (c) => c.charCodeAt(0) & 0xff));
}

export function parse(message: string | ArrayBuffer): TerminalMessage {
  const data = typeof message === "string" ? encoder.encode(message) : new Uint8Array(message);
  const rest = data.subarray(1);
  switch (data[0]) {
    case 0x30:
      return { kind: "output", data: rest };
    case 0x31:
      return { kind: "title", title: decoder.decode(rest.subarray(0, 1024)) };
    case 0x32:
      return { kind: "preferences", text: decoder.decode(rest) };
    default:
      return { kind: "unknown" };
  }
}

/** Whether a paste would run something before the person sees it: several lines, a last line end aside. */
export function needsGuard(text: string): boolean {
  return /[\r\n]/.test(text.replace(/\r?\n$/, ""));
}

export function asOneLine(text: string): string {
  return text.replace(/\s*[\r\n]+\s*/g, " ").trim();
}
