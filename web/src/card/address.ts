/** Where the parts of a chat are, for a card that was told of it. */
export type View = "computer" | "browser" | "terminal" | "file" | "port";

export interface Port {
  port: number;
  process: string;
  url: string;
}
export interface State {
  chat: string;
  base: string;
  key: string;
  expires: number;
  sandbox: string;
  browser: boolean;
  ports: Port[];
}

/** Paths in the sandbox under which the service shows files, and the names of their folders there. */
const ROOTS: [string, string][] = [
  ["/mnt/user-data/", ""],
  ["/home/assistant/", "workspace/"],
];

/** The path of a file for the service's pages; empty for one that they do not show. */
export function shownPath(path: string): string {
  for (const [root, folder] of ROOTS)
    if (path.startsWith(root) && !path.includes("/../") && !path.endsWith("/"))
      return folder + path.slice(root.length);
  return "";
}

const encoded = (path: string) => path.split("/").map(encodeURIComponent).join("/");

/** `theme`: that of the chat client, "" if it is not known. */
export function addressOf(state: State, view: View, path: string, theme = ""): string {
  const chat = encodeURIComponent(state.chat);
  const key = [
    ...(state.key ? [`key=${encodeURIComponent(state.key)}`] : []),
    ...(theme ? [`theme=${theme}`] : []),
  ].join("&");
  switch (view) {
    case "browser":
      return `${state.base}browser/${chat}/?${key}`;
    case "terminal":
      return `${state.base}terminal/${chat}/?${key}`;
    case "file":
      return path ? `${state.base}preview/${chat}/${encoded(path)}?embed=1&${key}` : "";
    default:
      return "";
  }
}
