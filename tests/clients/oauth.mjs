// The OAuth flow of the TypeScript SDK against the service at URL. Prints the URL at which a person signs in, reads the
// code from standard input, and prints what a tool answers.
import { createInterface } from 'node:readline/promises';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const callback = process.env.CALLBACK;
const kept = {};
const authProvider = {
  redirectUrl: callback,
  clientMetadata: {
    client_name: 'cubicle-test',
    redirect_uris: [callback],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    application_type: 'native',
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  redirectToAuthorization: (url) => console.log(`GO ${url}`),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
};
const connect = async () => {
  const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), { authProvider });
  const client = new Client({ name: 'cubicle-test', version: '1' });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    const lines = createInterface({ input: process.stdin });
    const code = (await lines[Symbol.asyncIterator]().next()).value;
    lines.close();
    await transport.finishAuth(code);
    return connect();
  }
  return client;
};
const client = await connect();
const arguments_ = { command: 'echo by typescript', description: 'test' };
const answer = await client.callTool({ name: 'bash_tool', arguments: arguments_ });
console.log(JSON.stringify({ answer: answer.content[0].text, scope: kept.tokens.scope }));
await client.close();
