/** How each client is told of the service: what a person copies. */

export const CLIENTS = [
  "claude-code",
  "claude-desktop",
  "cursor",
  "vscode",
  "open-webui",
  "librechat",
  "codex",
  "curl",
  "python",
] as const;
export type ClientName = (typeof CLIENTS)[number];

export interface Snippet {
  title: string;
  /** What to do with the text. */
  how: string;
  text: (to: Target) => string;
}

export interface Target {
  url: string;
  /** The key, or what stands in its place; empty where the service asks for none. */
  key: string;
}

/** A text in double quotes, as JSON, TOML and most shells read it. */
const quoted = (text: string): string => JSON.stringify(text);
/** In single quotes, for a shell: a quote in it ends them, stands by itself, and begins them anew. */
export const shell = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
const json = (value: unknown): string => JSON.stringify(value, null, 2);

const headers = (to: Target, chat: string): Record<string, string> => ({
  "X-Chat-Id": chat,
  ...(to.key ? { Authorization: `Bearer ${to.key}` } : {}),
});

const isPlainHttp = (url: string): boolean => url.startsWith("http:");

const CALL = {
  jsonrpc: "2.0",
  id: 1,
  method: "tools/call",
  params: {
    name: "bash_tool",
    arguments: { command: "uname -a; date", description: "Say hello" },
  },
};

export const SNIPPETS: Record<ClientName, Snippet> = {
  "claude-code": {
    title: "Claude Code",
    how: "Run this in your project. Each project gets a computer of its own by its X-Chat-Id.",
    text: (to) =>
      [
        `claude mcp add --transport http cubicle ${shell(to.url)}`,
        ...Object.entries(headers(to, "my-project")).map(
          ([name, value]) => `  --header ${shell(`${name}: ${value}`)}`,
        ),
      ].join(" \\\n"),
  },
  "claude-desktop": {
    title: "Claude Desktop",
    how: "Settings → Developer → Edit Config: put this into claude_desktop_config.json. It needs Node.",
    text: (to) => {
      const args = ["-y", "mcp-remote", to.url];
      if (isPlainHttp(to.url)) args.push("--allow-http");
      args.push("--header", "X-Chat-Id:desktop");
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the client fills it in
      if (to.key) args.push("--header", "Authorization:${CUBICLE_AUTH}");
      const env = to.key ? { env: { CUBICLE_AUTH: `Bearer ${to.key}` } } : {};
      return json({ mcpServers: { cubicle: { command: "npx", args, ...env } } });
    },
  },
  cursor: {
    title: "Cursor",
    how: "Put this into ~/.cursor/mcp.json, or into .cursor/mcp.json of a project.",
    text: (to) => json({ mcpServers: { cubicle: { url: to.url, headers: headers(to, "my-project") } } }),
  },
  vscode: {
    title: "VS Code",
    how: "Put this into .vscode/mcp.json of a project. Each chat names itself: no X-Chat-Id is needed.",
    text: (to) => {
      const own = to.key ? { headers: { Authorization: `Bearer ${to.key}` } } : {};
      return json({ servers: { cubicle: { type: "http", url: to.url, ...own } } });
    },
  },
  "open-webui": {
    title: "Open WebUI",
    how: "Start it with ENABLE_FORWARD_USER_INFO_HEADERS=true: each chat then has its own computer. Add an external tool server of type MCP (Streamable HTTP) with these values.",
    text: (to) => [`URL:   ${to.url}`, to.key ? `Auth:  Bearer ${to.key}` : "Auth:  None"].join("\n"),
  },
  librechat: {
    title: "LibreChat",
    how: "Put this into librechat.yaml. From a container, the host is host.docker.internal.",
    text: (to) => {
      const host = new URL(to.url).host;
      return [
        "mcpSettings:",
        `  allowedAddresses: [${quoted(host)}]`,
        "mcpServers:",
        "  cubicle:",
        "    type: streamable-http",
        `    url: ${quoted(to.url)}`,
        "    headers:",
        '      X-LibreChat-Conversation-Id: "{{LIBRECHAT_BODY_CONVERSATIONID}}"',
        '      X-LibreChat-User-Email: "{{LIBRECHAT_USER_EMAIL}}"',
        ...(to.key ? [`      Authorization: ${quoted(`Bearer ${to.key}`)}`] : []),
        "    serverInstructions: true",
        "    timeout: 600000",
      ].join("\n");
    },
  },
  codex: {
    title: "Codex",
    how: "Put this into ~/.codex/config.toml.",
    text: (to) =>
      [
        "[mcp_servers.cubicle]",
        `url = ${quoted(to.url)}`,
        `http_headers = { ${Object.entries(headers(to, "my-project"))
          .map(([name, value]) => `${quoted(name)} = ${quoted(value)}`)
          .join(", ")} }`,
        "tool_timeout_sec = 600",
      ].join("\n"),
  },
  curl: {
    title: "curl",
    how: "One tool call, by hand. The first one makes the computer.",
    text: (to) =>
      [
        `curl -s ${shell(to.url)}`,
        "  -H 'Accept: application/json, text/event-stream' -H 'Content-Type: application/json'",
        ...Object.entries(headers(to, "hello")).map(([name, value]) => `  -H ${shell(`${name}: ${value}`)}`),
        `  -d ${shell(JSON.stringify(CALL))}`,
      ].join(" \\\n"),
  },
  python: {
    title: "Python",
    how: "Save it as hello.py, then: pip install httpx && python hello.py",
    text: (to) =>
      [
        "import httpx",
        "",
        `url = ${quoted(to.url)}`,
        `headers = {"Accept": "application/json, text/event-stream", ${Object.entries(headers(to, "hello"))
          .map(([name, value]) => `${quoted(name)}: ${quoted(value)}`)
          .join(", ")}}`,
        `call = ${json(CALL)}`,
        "print(httpx.post(url, headers=headers, json=call, timeout=600).text)",
      ].join("\n"),
  },
};
