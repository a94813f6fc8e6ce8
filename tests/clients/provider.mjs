// A certified OpenID provider (npm oidc-provider) for the tests: anybody can register a client, and sign in under any
// name. Prints the issuer's URL. CALLBACK: the redirect URI of the service's own pages.
import { createServer } from 'node:http';
import { Provider } from 'oidc-provider';

const server = createServer();
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const callback = process.env.CALLBACK ?? 'http://127.0.0.1:1/login/callback';

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'cubicle-pages',
      token_endpoint_auth_method: 'none',
      redirect_uris: [callback],
      post_logout_redirect_uris: [callback.replace(/callback$/, '').replace(/\/$/, '')],
    },
    { client_id: 'with-secret', client_secret: 'a-secret-of-the-client', redirect_uris: [callback] },
  ],
  claims: { openid: ['sub'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: false,
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true }),
  }),
  extraTokenClaims: (_context, token) => ({ email: `${token.accountId}@example.com` }),
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => [],
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => ({
        scope: 'mcp',
        audience: resource,
        accessTokenTTL: 300,
        accessTokenFormat: 'jwt',
      }),
    },
  },
  scopes: ['openid', 'offline_access', 'mcp'],
});
server.on('request', provider.callback());
console.log(issuer);
