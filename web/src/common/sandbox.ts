/** Models write paths of the sandbox; the chat's files are addressed without these folders. */
const FOLDERS = /^\/(?:mnt\/user-data\/(?:outputs|uploads)|home\/assistant)\//;

/** The path among the chat's files that a path in the sandbox means; null for one that is not among them. */
export function chatPath(path: string): string | null {
  if (!path.startsWith("/")) return path;
  return FOLDERS.test(path) ? path.replace(FOLDERS, "") : null;
}
