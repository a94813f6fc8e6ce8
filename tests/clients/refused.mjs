// A TypeScript SDK (the one of 1.x, or the package that followed it) that the service at URL refuses; prints what it
// says of that.
const { Client, StreamableHTTPClientTransport } =
  process.env.SDK === 'client'
    ? await import('@modelcontextprotocol/client')
    : {
        ...(await import('@modelcontextprotocol/sdk/client/index.js')),
        ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
      };

const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), {
  requestInit: { headers: JSON.parse(process.env.HEADERS) },
});
const client = new Client({ name: 'cubicle-test', version: '1' });
const message = await client.connect(transport).then(() => 'it was let in', (error) => error.message);
console.log(JSON.stringify({ message }));
