// The TypeScript SDK's client against the service at URL; prints one JSON object of what it saw.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), {
  requestInit: { headers: { 'X-Chat-Id': 'typescript' } },
});
const client = new Client({ name: 'cubicle-test', version: '1' });
await client.connect(transport);
const seen = { session: transport.sessionId, instructions: client.getInstructions(), progress: [] };
seen.version = client.getServerVersion();
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
const call = (command, options) =>
  client.callTool({ name: 'bash_tool', arguments: { command, description: 'test' } }, undefined, options);
seen.answer = await call('echo a; sleep 0.4; echo b', { onprogress: (p) => seen.progress.push(p.message) });
seen.resources = (await client.listResources()).resources;
const abort = new AbortController();
const cancelled = call('exec -a marker-typescript sleep 60', { signal: abort.signal });
setTimeout(() => abort.abort('enough'), 400);
seen.cancelled = await cancelled.then(() => false, () => true);
await new Promise((resolve) => setTimeout(resolve, 900));
seen.left = (await call('pgrep -f marker-typescrip[t] || true')).content[0].text;
try {
  await client.callTool({ name: 'nothing', arguments: {} });
} catch (error) {
  seen.code = error.code;
}
await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
