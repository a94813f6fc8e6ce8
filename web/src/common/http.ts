/** Requests to the service, with a limit on every wait and its errors as one type. */

export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** The problem's type, where the service gives it one. */
    readonly type = "",
  ) {
    super(message);
  }
}

/** Whether a failure passes by itself: the service, or what stands before it, is being started again. */
export function isAway(error: unknown): boolean {
  return error instanceof HttpError && [0, 502, 503, 504].includes(error.status);
}

/** The computer is stopped; what was asked for does not start it. */
export const isAsleep = (error: unknown): error is HttpError =>
  error instanceof HttpError && error.type === "urn:cubicle:problem:asleep";

/** The chat has no computer yet; what was asked for does not make one. */
export const isUnmade = (error: unknown): error is HttpError =>
  error instanceof HttpError && error.type === "urn:cubicle:problem:no-sandbox";

/** The program does not run; to look for it does not start it. */
export const isNotStarted = (error: unknown): error is HttpError =>
  error instanceof HttpError && error.type === "urn:cubicle:problem:not-started";

const LIMIT_MS = 20_000;

export async function problemOf(response: Response): Promise<HttpError> {
  let detail = `The service answered ${response.status}.`;
  let kind = "";
  if (response.headers.get("content-type")?.includes("json")) {
    const body: unknown = await response.json().catch(() => null);
    if (body && typeof body === "object") {
      const { detail: told, title, type, reason } = body as Record<string, unknown>;
      // A reason stands alone: the detail says besides what a program can do, where a page has a button.
      const text = [reason, told, title].find((value) => typeof value === "string");
      if (typeof text === "string") detail = text;
      if (typeof type === "string") kind = type;
    }
  }
  return new HttpError(response.status, detail, kind);
}

export async function request(url: string, init: RequestInit = {}, limit = LIMIT_MS): Promise<Response> {
  const timeout = AbortSignal.timeout(limit);
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  let response: Response;
  try {
    response = await fetch(url, { ...init, signal });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new HttpError(
      0,
      timeout.aborted ? "The service did not answer in time." : "The service cannot be reached.",
    );
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export async function getJson<T>(url: string, signal?: AbortSignal): Promise<T> {
  const response = await request(url, { headers: { accept: "application/json" }, signal: signal ?? null });
  return (await response.json()) as T;
}

export async function post(url: string, limit?: number): Promise<void> {
  await request(url, { method: "POST" }, limit);
}
