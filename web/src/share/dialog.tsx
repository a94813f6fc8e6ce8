/** Sharing: links to a chat, its replay, or one file of it, with a role and an end, which can be revoked. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ChatLink, ChatLinkList } from "../common/api.generated";
import { writeClipboard } from "../common/clipboard";
import { shownName } from "../common/format";
import { getJson, request } from "../common/http";
import type { Addresses, PageData } from "../common/page";
import { Icon } from "../ui/icon";
import { Dialog } from "../ui/parts";
import { toast } from "../ui/toast";
import "./share.css";

export type ShareTarget = "chat" | "replay" | "file";

const DURATIONS = [
  { hours: 1, words: "1 hour" },
  { hours: 24, words: "1 day" },
  { hours: 168, words: "1 week" },
  { hours: 720, words: "30 days" },
];
const WORDS: Record<ShareTarget, string> = {
  chat: "The whole chat: activity, files, browser, terminal, ports",
  replay: "The replay: what was done, and pictures of the browser",
  file: "This file only",
};

const failed = (error: unknown) => toast(error instanceof Error ? error.message : "That did not work.");

const copy = (text: string) =>
  writeClipboard(text).then(
    () => toast("The link was copied."),
    () => toast("This browser refused to copy."),
  );

function Made({ links, onRevoke }: { links: ChatLink[]; onRevoke: (id: string) => void }) {
  const now = Date.now() / 1000;
  const held = links.filter((link) => link.expires > now);
  if (held.length === 0) return null;
  return (
    <section aria-label="Links that work">
      <h3>Links that work</h3>
      <ul class="share-links">
        {held.map((link) => (
          <li key={link.id}>
            <span class="grow">
              <strong>{shownName(link.label) || "Without a name"}</strong>{" "}
              <span class="muted">
                {link.opens === "file" ? shownName(link.path) : link.opens} · {link.access} · until{" "}
                {new Date(link.expires * 1000).toLocaleString()}
              </span>
            </span>
            <button type="button" class="danger" onClick={() => onRevoke(link.id)}>
              Revoke
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function ShareDialog(props: {
  addresses: Addresses;
  opens: ShareTarget;
  path: string;
  locked: boolean;
  onClose: () => void;
}) {
  const { addresses, path } = props;
  const opens = useSignal<ShareTarget>(props.opens);
  const access = useSignal("view");
  const hours = useSignal(168);
  const label = useSignal("");
  const made = useSignal("");
  const links = useSignal<ChatLink[]>([]);
  const busy = useSignal(false);
  const load = () =>
    getJson<ChatLinkList>(addresses.links()).then((found) => {
      links.value = found.links;
    });
  useEffect(() => {
    if (props.locked) load().catch(failed);
  }, []);
  const act = async (work: () => Promise<unknown>) => {
    busy.value = true;
    await work().catch(failed);
    busy.value = false;
  };
  const make = () =>
    act(async () => {
      const url = new URL(addresses.links());
      const role = opens.value === "chat" ? access.value : "view";
      const asked = { opens: opens.value, access: role, hours: String(hours.value), label: label.value };
      for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value);
      if (opens.value === "file") url.searchParams.set("path", path);
      const answer = await request(url.href, { method: "POST" });
      made.value = ((await answer.json()) as ChatLink).url ?? "";
      await load();
    });
  const targets: ShareTarget[] = path ? ["file", "chat", "replay"] : ["chat", "replay"];
  if (!props.locked)
    return (
      <Dialog title="Share" onClose={props.onClose}>
        <p>This service has no key: whoever reaches it can open every chat. Copy the address of this page.</p>
        <div class="actions">
          <button type="button" class="primary" onClick={() => void copy(document.location.href)}>
            Copy address
          </button>
          <button type="button" onClick={props.onClose}>
            Close
          </button>
        </div>
      </Dialog>
    );
  return (
    <Dialog title="Share" onClose={props.onClose}>
      <label>
        What
        <select
          value={opens.value}
          onChange={(event) => {
            opens.value = event.currentTarget.value as ShareTarget;
            made.value = "";
          }}
        >
          {targets.map((target) => (
            <option key={target} value={target}>
              {WORDS[target]}
            </option>
          ))}
        </select>
      </label>
      {opens.value === "chat" && (
        <label>
          Who has the link may
          <select
            value={access.value}
            onChange={(event) => {
              access.value = event.currentTarget.value;
              made.value = "";
            }}
          >
            <option value="view">look</option>
            <option value="control">look, type, click, upload and delete</option>
          </select>
        </label>
      )}
      <label>
        For
        <select
          value={String(hours.value)}
          onChange={(event) => {
            hours.value = Number(event.currentTarget.value);
            made.value = "";
          }}
        >
          {DURATIONS.map((one) => (
            <option key={one.hours} value={String(one.hours)}>
              {one.words}
            </option>
          ))}
        </select>
      </label>
      <label>
        Whom it is for
        <input
          maxLength={200}
          value={label.value}
          placeholder="A name, to find it again"
          onInput={(event) => {
            label.value = event.currentTarget.value;
          }}
        />
      </label>
      <p class="muted">A port is shared in its own panel: a public link, for programs that others may use.</p>
      {made.value ? (
        <div class="share-made">
          <input
            readOnly
            aria-label="Link"
            value={made.value}
            onFocus={(event) => event.currentTarget.select()}
          />
          <button type="button" class="primary" onClick={() => void copy(made.value)}>
            Copy link
          </button>
        </div>
      ) : (
        <button type="button" class="primary" disabled={busy.value} onClick={() => void make()}>
          Make link
        </button>
      )}
      <Made
        links={links.value}
        onRevoke={(id) =>
          void act(async () => {
            await request(addresses.links(id), { method: "DELETE" });
            made.value = "";
            await load();
            toast("The link was revoked. It opens nothing any more.");
          })
        }
      />
      <div class="actions">
        <button type="button" onClick={props.onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

/** For who may make links; nothing for others. */
export function ShareButton(props: {
  page: PageData;
  addresses: Addresses;
  opens: ShareTarget;
  path?: string;
}) {
  const asks = useSignal(false);
  if (props.page.locked && !props.page.signed_in) return null;
  return (
    <>
      <button
        type="button"
        class="plain"
        title="Share"
        aria-label="Share"
        onClick={() => {
          asks.value = true;
        }}
      >
        <Icon name="share" />
        <span class="wide-only">Share</span>
      </button>
      {asks.value && (
        <ShareDialog
          addresses={props.addresses}
          opens={props.path && props.opens === "chat" ? "file" : props.opens}
          path={props.path ?? ""}
          locked={props.page.locked}
          onClose={() => {
            asks.value = false;
          }}
        />
      )}
    </>
  );
}

/** For who signed in. */
export function SignOut({ page, addresses }: { page: PageData; addresses: Addresses }) {
  if (!page.signed_in) return null;
  return (
    <form method="post" action={addresses.logout()}>
      <button type="submit" class="plain" title="Sign out" aria-label="Sign out">
        <Icon name="leave" />
      </button>
    </form>
  );
}
