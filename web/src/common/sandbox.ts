import { decodePath, encodePath, isPlain } from "./page";

/** Models write paths of the sandbox; the chat's files are addressed without these folders. */
const FOLDERS = /^\/(?:mnt\/user-data\/(?:outputs|uploads)|home\/assistant)\//;

/** The path among the chat's files that a path in the sandbox means; null for one that is not among them. */
export function chatPath(path: string): string | null {
  const found = path.replace(FOLDERS, "");
  return isPlain(found) ? found : null;
}

/** The path among the chat's files that a link leads to; null for one that is not among them. */
export function targetOf(href: string, from: string): string | null {
  const base = new URL(encodePath(from), "file:///");
  try {
    const { pathname } = new URL(href, base);
    const parts = pathname.slice(1).split("/").map(decodePath);
    // No name holds a slash: an encoded one is there to be read as a way up by whoever decodes it.
    if (parts.some((part) => part.includes("/"))) return null;
    const path = parts.join("/");
    return chatPath(/^[/\\]/.test(href) ? `/${path}` : path);
  } catch {
    return null; // not an address
  }
}
