/** Reads a file for the viewer frame, never more of it than the frame can show. */
import { HttpError, request } from "../common/http";
import { type Kind, kindOfBytes, kindOfName, SHOWN_IN_PART } from "../common/kinds";

const MOST_IN_PART = 4 * 1024 * 1024;
const MOST_WHOLE = 64 * 1024 * 1024;
const LIMIT_MS = 120_000;

export interface Loaded {
  kind: Kind;
  bytes: ArrayBuffer;
  size: number;
}

/** Whole size from an answer to a range request. */
export function sizeOf(response: {
  status: number;
  headers: { get(name: string): string | null };
}): number | null {
  const whole =
    response.status === 206 ? /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1] : null;
  const told = whole ?? (response.status === 200 ? response.headers.get("content-length") : null);
  return told ? Number(told) : null;
}

export async function load(url: string, name: string, asText: boolean, signal: AbortSignal): Promise<Loaded> {
  const named = asText ? "text" : kindOfName(name);
  const part = named === null || SHOWN_IN_PART.has(named);
  const most = part ? MOST_IN_PART : MOST_WHOLE;
  let response: Response;
  try {
    response = await request(url, { signal, headers: { range: `bytes=0-${most - 1}` } }, LIMIT_MS);
  } catch (error) {
    // No byte can be had of an empty file.
    if (!(error instanceof HttpError) || error.status !== 416) throw error;
    return { kind: named ?? "text", bytes: new ArrayBuffer(0), size: 0 };
  }
  const told = sizeOf(response);
  if (!part && (told ?? 0) > MOST_WHOLE) {
    await response.body?.cancel();
    throw new HttpError(413, "This file is too large to show here. Download it instead.");
  }
  const bytes = await firstBytes(response, most).catch((error: unknown) => {
    throw signal.aborted ? error : new HttpError(0, "The connection was lost while the file was read.");
  });
  const kind = named ?? kindOfBytes(new Uint8Array(bytes));
  return { kind, bytes, size: told ?? bytes.byteLength };
}

/** A service that ignores the range must not fill the memory of the page. */
async function firstBytes(response: Response, most: number): Promise<ArrayBuffer> {
  const reader = response.body?.getReader();
  const pieces: Uint8Array[] = [];
  let length = 0;
  while (reader && length < most) {
    const { done, value } = await reader.read();
    if (done) break;
    const piece = value.subarray(0, most - length);
    pieces.push(piece);
    length += piece.length;
  }
  await reader?.cancel();
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all.buffer;
}
