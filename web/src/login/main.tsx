/** Asks for the key. A plain form: it works the same when the script of the page is slow. */
import "./login.css";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { Brand } from "../ui/brand";

/** The service answers with this page in place of one that needs a key: signing in then leads back to it. */
function wayBack(page: PageData): string {
  const here = new Addresses(page).here();
  return page.next || (/^\/login($|[?/])/.test(here) ? "" : here);
}

function Login({ page }: { page: PageData }) {
  const next = wayBack(page);
  // In the address too: the answer to a wrong key is made from the address alone.
  const action = new URL(page.root, document.location.href);
  action.pathname += "login";
  action.search = new URLSearchParams({ next }).toString();
  return (
    <main class="login">
      <form method="post" action={action.href}>
        <Brand />
        {page.locked ? <AskForKey message={page.message} /> : <NoKeyNeeded />}
        <input type="hidden" name="next" value={next} />
        <button type="submit" class="primary">
          {page.locked ? "Sign in" : "Continue"}
        </button>
        {page.locked && page.issuer && <ByIssuer page={page} next={next} />}
      </form>
    </main>
  );
}

/** The same service that lets MCP clients in: a person who has an account there needs no key. */
function ByIssuer({ page, next }: { page: PageData; next: string }) {
  const way = new URL("login/oauth", new URL(page.root, document.location.href));
  way.search = new URLSearchParams({ next }).toString();
  return (
    <a class="by-issuer" href={way.href}>
      Sign in with {page.issuer}
    </a>
  );
}

function AskForKey({ message }: { message: string }) {
  return (
    <>
      <h1>Sign in</h1>
      {message ? (
        <p class="notice bad" role="alert">
          {message}
        </p>
      ) : (
        <p class="muted">Give the key of this service, or open a link that the model gave you.</p>
      )}
      <label for="key">API key</label>
      <input id="key" name="key" type="password" autoComplete="current-password" required autoFocus />
    </>
  );
}

function NoKeyNeeded() {
  return (
    <>
      <h1>No key is needed</h1>
      <p class="muted">This service has none set: whoever reaches it may use it.</p>
    </>
  );
}

start(<Login page={readPage()} />);
document.getElementById("key")?.focus();
