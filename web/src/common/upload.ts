/** Sends one file. XMLHttpRequest, because fetch tells nothing of how far it is. */
import { HttpError } from "./http";

export function sendFile(
  url: string,
  file: Blob,
  onProgress: (share: number) => void,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (event) => {
      if (event.lengthComputable && event.total > 0) onProgress(event.loaded / event.total);
    };
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) resolve();
      else reject(new HttpError(request.status, detailOf(request)));
    };
    request.onerror = () => reject(new HttpError(0, "The service cannot be reached."));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(file);
  });
}

function detailOf(request: XMLHttpRequest): string {
  try {
    const body = JSON.parse(request.responseText) as { detail?: unknown; title?: unknown };
    if (typeof body.detail === "string") return body.detail;
    if (typeof body.title === "string") return body.title;
  } catch {
    // not JSON
  }
  return `The service answered ${request.status}.`;
}
