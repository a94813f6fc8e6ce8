// The TypeScript SDK's client runs COMMAND at URL; prints one JSON object of what it saw.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), {
  requestInit: { headers: { 'X-Chat-Id': process.env.CHAT } },
});
const client = new Client({ name: 'cubicle-test', version: '1' });
await client.connect(transport);
const seen = { progress: [], errors: [] };
client.onerror = (error) => seen.errors.push(String(error));
const params = { name: 'bash_tool', arguments: { command: process.env.COMMAND, description: 'test' } };
seen.answer = await client.callTool(params, undefined, {
  onprogress: (p) => seen.progress.push(p.message),
  timeout: 100_000,
});
await client.close();
console.log(JSON.stringify(seen));
