/** Sharing: links to a chat, its replay, one file or one port of it, with a role and an end, which can be revoked. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ChatLink, ChatLinkList, PortOverview, PortRecord, PortShared } from "../common/api.generated";
import { writeClipboard } from "../common/clipboard";
import { shownName } from "../common/format";
import { getJson, request } from "../common/http";
import type { Addresses, PageData } from "../common/page";
import { dark, nextTheme } from "../common/theme";
import { Icon } from "../ui/icon";
import { MenuButton } from "../ui/menu";
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

const SHORT: Record<string, string> = { chat: "The whole chat", replay: "The replay", file: "A file" };
const PORT = /^port:(\d+)$/;
const portIn = (target: string): number => Number(PORT.exec(target)?.[1] ?? 0);

const failed = (error: unknown) => toast(error instanceof Error ? error.message : "That did not work.");

const copy = (text: string) =>
  writeClipboard(text).then(
    () => toast("The link was copied."),
    () => toast("This browser refused to copy."),
  );

const until = (expires: number) =>
  ` · until ${new Date(expires * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}`;

function Row(props: { name: string; words: string; url: string | null; onRevoke: () => void }) {
  const { url } = props;
  return (
    <li>
      <span class="grow">
        <strong>{props.name}</strong>
        <span class="muted">{props.words}</span>
      </span>
      {url && (
        <button type="button" onClick={() => void copy(url)}>
          Copy
        </button>
      )}
      <button type="button" class="danger" onClick={props.onRevoke}>
        Revoke
      </button>
    </li>
  );
}

function Made(props: {
  links: ChatLink[];
  ports: PortRecord[];
  onRevoke: (id: string) => void;
  onClosePort: (port: number) => void;
}) {
  const now = Date.now() / 1000;
  const held = props.links.filter((link) => link.expires > now);
  const open = props.ports.flatMap(({ port, public: share }) => (share ? [{ port, ...share }] : []));
  if (held.length + open.length === 0) return null;
  return (
    <section aria-label="Links that work">
      <h3>Links that work</h3>
      <ul class="share-links">
        {open.map(({ port, url, expires }) => (
          <Row
            key={port}
            name={`Port ${port}`}
            words={`Public${until(expires)}`}
            url={url}
            onRevoke={() => props.onClosePort(port)}
          />
        ))}
        {held.map((link) => (
          <Row
            key={link.id}
            name={shownName(link.label) || "Without a name"}
            words={`${link.opens === "file" ? shownName(link.path) : SHORT[link.opens]}, ${link.access === "control" ? "to use" : "to look"}${until(link.expires)}`}
            url={null}
            onRevoke={() => props.onRevoke(link.id)}
          />
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
  /** What is shared: a part of the chat, or `port:` and its number. */
  const opens = useSignal<string>(props.opens);
  const access = useSignal("view");
  const hours = useSignal(168);
  const label = useSignal("");
  const made = useSignal("");
  const links = useSignal<ChatLink[]>([]);
  const ports = useSignal<PortOverview | null>(null);
  const busy = useSignal(false);
  const load = async () => {
    const [found, open] = await Promise.all([
      getJson<ChatLinkList>(addresses.links()),
      getJson<PortOverview>(addresses.openPorts()),
    ]);
    links.value = found.links;
    ports.value = open;
  };
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
      const port = portIn(opens.value);
      if (port) {
        const url = new URL(addresses.portShare(port));
        url.searchParams.set("hours", String(hours.value));
        const answer = await request(url.href, { method: "POST" });
        made.value = ((await answer.json()) as PortShared).url;
        await load();
        return;
      }
      const url = new URL(addresses.links());
      const role = opens.value === "chat" ? access.value : "view";
      const asked = { opens: opens.value, access: role, hours: String(hours.value), label: label.value };
      for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value);
      if (opens.value === "file") url.searchParams.set("path", path);
      const answer = await request(url.href, { method: "POST" });
      made.value = ((await answer.json()) as ChatLink).url ?? "";
      await load();
    });
  const shared = ports.value?.sharing ? ports.value.ports.filter((one) => one.open) : [];
  const port = portIn(opens.value);
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
            opens.value = event.currentTarget.value;
            made.value = "";
          }}
        >
          {targets.map((target) => (
            <option key={target} value={target}>
              {WORDS[target]}
            </option>
          ))}
          {shared.map(({ port, process }) => (
            <option key={port} value={`port:${port}`}>
              {`Port ${port}: ${shownName(process) || "the program that listens there"}`}
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
      {port ? (
        <p class="muted">
          Anybody who has the link uses the program as it is, without a key. It does not open the chat.
        </p>
      ) : (
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
      )}
      {ports.value && !ports.value.sharing && ports.value.ports.length > 0 && (
        <p class="muted">Ports are not shared here: the operator allows it with PREVIEW_PUBLIC.</p>
      )}
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
        ports={ports.value?.ports ?? []}
        onClosePort={(closed) =>
          void act(async () => {
            await request(addresses.portShare(closed), { method: "DELETE" });
            made.value = "";
            await load();
            toast("The port is private again.");
          })
        }
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

/** What a phone's header has no room for. */
export function MoreMenu({ page, addresses, path }: { page: PageData; addresses: Addresses; path: string }) {
  const asks = useSignal(false);
  const mayShare = !page.locked || page.signed_in;
  return (
    <>
      <MenuButton
        class="phone-only"
        label="More"
        icon="more"
        actions={() => [
          { title: "Replay", icon: "history", href: addresses.replayPage() },
          ...(mayShare
            ? [
                {
                  title: "Share",
                  icon: "share" as const,
                  run: () => {
                    asks.value = true;
                  },
                },
              ]
            : []),
          { title: "Dark or light", icon: dark.value ? "sun" : "moon", run: nextTheme },
          ...(page.signed_in
            ? [{ title: "Sign out", icon: "leave" as const, run: () => signOut(addresses) }]
            : []),
        ]}
      />
      {asks.value && (
        <ShareDialog
          addresses={addresses}
          opens={path ? "file" : "chat"}
          path={path}
          locked={page.locked}
          onClose={() => {
            asks.value = false;
          }}
        />
      )}
    </>
  );
}

function signOut(addresses: Addresses): void {
  const form = document.createElement("form");
  form.method = "post";
  form.action = addresses.logout();
  document.body.append(form);
  form.submit();
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
