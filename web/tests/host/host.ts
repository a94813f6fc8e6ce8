/**
 * A chat client that shows cards, made of the packages that the extension itself publishes: its AppBridge, and the MCP
 * client. The test reads `cards` and calls `callTool`.
 */
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  AppBridge,
  getToolUiResourceUri,
  PostMessageTransport,
  RESOURCE_MIME_TYPE,
} from "@modelcontextprotocol/ext-apps/app-bridge";

const EXTENSION = "io.modelcontextprotocol/ui";
const asked = new URL(location.href).searchParams;

interface Shown {
  tool: string;
  text: string;
  opened: string[];
  sizes: number[];
  csp: unknown;
}

declare global {
  interface Window {
    cards: Shown[];
    ready: Promise<string[]>;
    callTool: (name: string, input: Record<string, unknown>) => Promise<number>;
  }
}

const client = new Client(
  { name: "reference-host", version: "1" },
  { capabilities: { extensions: { [EXTENSION]: { mimeTypes: [RESOURCE_MIME_TYPE] } } } },
);
const headers = { Authorization: `Bearer ${asked.get("bearer")}`, "X-Chat-Id": asked.get("chat") ?? "" };
const transport = new StreamableHTTPClientTransport(new URL(asked.get("mcp") ?? ""), {
  requestInit: { headers },
});

window.cards = [];
window.ready = client.connect(transport).then(async () => {
  const { tools } = await client.listTools();
  return tools.map((tool) => `${tool.name} ${getToolUiResourceUri(tool)}`);
});

/** The outer frame of the host: of another origin, with the policy that the card asked for. */
async function proxy(csp: unknown): Promise<HTMLIFrameElement> {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-same-origin allow-forms");
  frame.style.cssText = "width: 800px; height: 500px; border: 1px solid";
  const loaded = new Promise<void>((resolve) => {
    addEventListener("message", (event) => {
      if (
        event.source === frame.contentWindow &&
        event.data?.method === "ui/notifications/sandbox-proxy-ready"
      )
        resolve();
    });
  });
  frame.src = `${asked.get("sandbox")}?csp=${encodeURIComponent(JSON.stringify(csp ?? {}))}`;
  document.body.append(frame);
  await loaded;
  return frame;
}

window.callTool = async (name, input) => {
  const { tools } = await client.listTools();
  const tool = tools.find((one) => one.name === name);
  const uri = tool && getToolUiResourceUri(tool);
  if (!uri) throw new Error(`${name} has no card`);
  const result = await client.callTool({ name, arguments: input });
  const { contents } = await client.readResource({ uri });
  const page = contents[0] as { text: string; mimeType: string; _meta?: { ui?: { csp?: object } } };
  if (page.mimeType !== RESOURCE_MIME_TYPE) throw new Error(page.mimeType);
  const csp = page._meta?.ui?.csp;
  const frame = await proxy(csp);
  const bridge = new AppBridge(
    client,
    { name: "reference-host", version: "1" },
    { openLinks: {}, serverTools: {}, serverResources: {}, logging: {} },
    { hostContext: { theme: "dark", displayMode: "inline", containerDimensions: { maxHeight: 2000 } } },
  );
  const shown: Shown = { tool: name, text: JSON.stringify(result.content), opened: [], sizes: [], csp };
  bridge.onopenlink = async ({ url }) => {
    shown.opened.push(url);
    return {};
  };
  bridge.onsizechange = ({ height }) => {
    if (height !== undefined) {
      shown.sizes.push(height);
      frame.style.height = `${height}px`;
    }
  };
  const begun = new Promise<void>((resolve) => {
    bridge.oninitialized = () => resolve();
  });
  const target = frame.contentWindow as Window;
  await bridge.connect(new PostMessageTransport(target, target));
  await bridge.sendSandboxResourceReady({ html: page.text, ...(csp && { csp }) });
  await begun;
  await bridge.sendToolInput({ arguments: input });
  await bridge.sendToolResult(result as Parameters<typeof bridge.sendToolResult>[0]);
  return window.cards.push(shown);
};
