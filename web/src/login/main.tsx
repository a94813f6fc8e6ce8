/** Asks for the key. A plain form: it works the same when the script of the page is slow. */
import "./login.css";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";

/** The service answers with this page in place of one that needs a key: signing in then leads back to it. */
function wayBack(page: PageData): string {
  const here = new Addresses(page).here();
  return page.next || (/^\/login($|\?)/.test(here) ? "" : here);
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
        <h1>Sign in to Cubicle</h1>
        <p class="muted">Give the key of this service, or open a link that the model gave you.</p>
        {page.message && (
          <p class="notice bad" role="alert">
            {page.message}
          </p>
        )}
        <label for="key">API key</label>
        <input id="key" name="key" type="password" autoComplete="current-password" required autoFocus />
        <input type="hidden" name="next" value={next} />
        <button type="submit" class="primary">
          Sign in
        </button>
      </form>
    </main>
  );
}

start(<Login page={readPage()} />);
document.getElementById("key")?.focus();
