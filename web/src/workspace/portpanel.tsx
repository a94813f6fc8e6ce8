/** The panel of ports: what programs of the sandbox serve, in a frame of an origin of its own. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { PortRecord } from "../common/api.generated";
import { writeClipboard } from "../common/clipboard";
import { shownName } from "../common/format";
import { post, request } from "../common/http";
import type { Addresses } from "../common/page";
import { Icon } from "../ui/icon";
import { Dialog, Empty, IconButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { type Awake, DownNotice } from "./awake";
import { visitPanel } from "./place";
import { isReachable, linkTo, type Ports, plainAddress, titleOf, typedTarget } from "./ports";

const DURATIONS = [
  { hours: 1, words: "1 hour" },
  { hours: 24, words: "1 day" },
  { hours: 168, words: "1 week" },
];
/** Scripts run in an origin of the port's own; the page around it is not theirs to lead elsewhere. */
const SANDBOX =
  "allow-scripts allow-same-origin allow-forms allow-popups allow-popups-to-escape-sandbox allow-modals allow-downloads";

const copy = (text: string, words: string) =>
  writeClipboard(text).then(
    () => toast(words),
    () => toast("This browser refused to copy."),
  );

/** Chips of ports in the header; the others are one more chip together. */
const MOST_CHIPS = 4;

/** In the header: one chip for each port that is open; a click shows it. */
export function PortChips({ ports }: { ports: Ports }) {
  const open = ports.overview.value.ports.filter((port) => port.open);
  return (
    <div class="chips" role="group" aria-label="Open ports">
      {open.slice(0, open.length > MOST_CHIPS ? MOST_CHIPS - 1 : MOST_CHIPS).map((port) => (
        <button
          type="button"
          key={port.port}
          class={`chip ${port.public ? "warn" : "accent"}`}
          title={port.public ? "Public: whoever has the link can open it" : "Show this port"}
          onClick={() => {
            ports.chosen.value = port.port;
            visitPanel("ports", { port: port.port });
          }}
        >
          {titleOf(port)}
          {port.public ? " · public" : ""}
        </button>
      ))}
      {open.length > MOST_CHIPS && (
        <button type="button" class="chip" onClick={() => visitPanel("ports")}>
          {`${open.length - MOST_CHIPS + 1} more ports`}
        </button>
      )}
    </div>
  );
}

function ShareDialog(props: { port: PortRecord; addresses: Addresses; onClose: () => void }) {
  const { port } = props;
  const hours = useSignal(24);
  const busy = useSignal(false);
  const act = async (work: () => Promise<unknown>, words: string) => {
    busy.value = true;
    try {
      await work();
      toast(words);
    } catch (error) {
      toast(error instanceof Error ? error.message : "That did not work.");
    }
    busy.value = false;
  };
  const url = props.addresses.portShare(port.port);
  const local = /^https?:\/\/[^/]*\.localhost(:|\/)/.test(port.url);
  return (
    <Dialog title={`Share port ${port.port}`} onClose={props.onClose}>
      {port.public ? (
        <>
          <p>
            This port is <strong>public</strong> until {new Date(port.public.expires * 1000).toLocaleString()}
            : whoever has the link can open it{local ? ", on the machine that the service runs on" : ""}.
          </p>
          <input
            readOnly
            aria-label="Public link"
            value={port.public.url}
            onFocus={(e) => e.currentTarget.select()}
          />
          <div class="row">
            <button
              type="button"
              onClick={() => void copy(port.public?.url ?? "", "The public link was copied.")}
            >
              Copy public link
            </button>
            <button
              type="button"
              class="danger"
              disabled={busy.value}
              onClick={() => void act(() => request(url, { method: "DELETE" }), "The port is private again.")}
            >
              Stop sharing
            </button>
            <button type="button" onClick={props.onClose}>
              Close
            </button>
          </div>
        </>
      ) : (
        <>
          <p>
            The chat’s own links are for the people of this chat. A public link lets anybody who has it use
            the program on port {port.port}, until the time is over or you stop sharing.
            {local && " Without PREVIEW_DOMAIN it opens only on the machine that the service runs on."}
          </p>
          <label>
            For{" "}
            <select
              value={hours.value}
              onChange={(event) => {
                hours.value = Number(event.currentTarget.value);
              }}
            >
              {DURATIONS.map((one) => (
                <option key={one.hours} value={one.hours}>
                  {one.words}
                </option>
              ))}
            </select>
          </label>
          <div class="row">
            <button
              type="button"
              disabled={busy.value}
              onClick={() =>
                void act(
                  () => post(`${url}${url.includes("?") ? "&" : "?"}hours=${hours.value}`),
                  "The port is public now.",
                )
              }
            >
              Make public
            </button>
            <button type="button" onClick={props.onClose}>
              Cancel
            </button>
          </div>
        </>
      )}
    </Dialog>
  );
}

/** The page itself. The link is renewed with each overview; a frame that is loaded does not load again for that. */
function PageFrame({ port, path }: { port: PortRecord; path: string }) {
  const source = useSignal(linkTo(port, path));
  return (
    <iframe
      class="port-frame"
      title={`Port ${titleOf(port)}`}
      sandbox={SANDBOX}
      allow="clipboard-write; fullscreen"
      referrerpolicy="no-referrer"
      src={source.value}
    />
  );
}

function ClosedPort({ port, down, onOpen }: { port: PortRecord; down: boolean; onOpen: () => void }) {
  return (
    <Empty icon="server" title={`Nothing listens on port ${port.port}`}>
      <p>{down ? "The computer is stopped." : "When a program listens on it, its page is shown here."}</p>
      <button type="button" class="primary" onClick={onOpen}>
        {down ? "Start the computer and open the port" : "Open the port now"}
      </button>
    </Empty>
  );
}

/** To load a page starts a sandbox that is stopped: of a port that is closed it is loaded when somebody asks for it. */
function PortFrame({
  port,
  ports,
  sharing,
  addresses,
  down,
  onAsked,
}: {
  port: PortRecord;
  ports: Ports;
  sharing: boolean;
  addresses: Addresses;
  down: boolean;
  onAsked: () => void;
}) {
  const wanted = ports.wanted.peek();
  const first = wanted?.port === port.port ? wanted.path : "";
  const path = useSignal(first);
  const typed = useSignal(plainAddress(port, first));
  const round = useSignal(0);
  const asked = useSignal(false);
  const asks = useSignal(false);
  const load = (to: string) => {
    path.value = to;
    typed.value = plainAddress(port, to);
    asked.value = !port.open;
    round.value += 1;
    onAsked();
  };
  useEffect(() => {
    if (port.open) asked.value = false;
  }, [port.open]);
  useEffect(() => {
    ports.wanted.value = null;
  }, []);
  return (
    <>
      <div class="bar port-bar">
        <IconButton icon="reload" label="Load again" onClick={() => load(path.value)} />
        <form
          class="grow"
          onSubmit={(event) => {
            event.preventDefault();
            const { ports: all } = ports.overview.peek();
            const target = typedTarget(all, port, typed.value);
            if (!target)
              toast("This panel shows ports of this chat only. Open other addresses in the browser.");
            else if (target.port === port.port) load(target.path);
            else if (all.some((one) => one.port === target.port)) {
              ports.wanted.value = target;
              visitPanel("ports", { port: target.port });
              ports.chosen.value = target.port;
            } else toast(`Nothing listens on port ${target.port}.`);
          }}
        >
          <input
            aria-label="Address"
            spellcheck={false}
            value={typed.value}
            onInput={(event) => {
              typed.value = event.currentTarget.value;
            }}
          />
        </form>
        <a
          class="button plain"
          href={linkTo(port, path.value)}
          target="_blank"
          rel="noopener noreferrer"
          aria-label="Open in a new tab"
          title="Open in a new tab"
        >
          <Icon name="open" />
        </a>
        <IconButton
          icon="copy"
          label="Copy link"
          onClick={() =>
            void copy(linkTo(port, path.value), "The link was copied. It opens this port for whoever has it.")
          }
        />
        {(sharing || port.public) && !addresses.viewOnly && (
          <button
            type="button"
            onClick={() => {
              asks.value = true;
            }}
          >
            {port.public ? "Public" : "Share"}
          </button>
        )}
      </div>
      {port.open || asked.value ? (
        <PageFrame key={`${port.open} ${round.value}`} port={port} path={path.value} />
      ) : (
        <ClosedPort port={port} down={down} onOpen={() => load(path.value)} />
      )}
      {asks.value && (
        <ShareDialog
          port={port}
          addresses={addresses}
          onClose={() => {
            asks.value = false;
          }}
        />
      )}
    </>
  );
}

export function PortsPanel({
  ports,
  addresses,
  awake,
}: {
  ports: Ports;
  addresses: Addresses;
  awake: Awake;
}) {
  const { ports: all, sharing, note, services } = ports.overview.value;
  const shown = ports.shown.value;
  const reachable = isReachable(note, document.location.hostname);
  return (
    <section class="panel" aria-label="Ports">
      <header class="bar">
        <h2>Ports</h2>
        <div class="port-tabs grow" role="tablist" aria-label="Ports">
          {all.map((port) => (
            <button
              type="button"
              role="tab"
              key={port.port}
              aria-selected={port.port === shown?.port}
              class={`plain ${port.open ? "" : "muted"}`}
              onClick={() => {
                ports.chosen.value = port.port;
                visitPanel("ports", { port: port.port });
              }}
            >
              {titleOf(port)}
              {port.public ? " · public" : ""}
            </button>
          ))}
        </div>
      </header>
      <DownNotice awake={awake} />
      {!reachable && (
        <p class="notice warn" role="status">
          {note}
        </p>
      )}
      {services.map((fault) => (
        <p key={fault} class="notice warn" role="status">
          {`services.json: ${shownName(fault)}`}
        </p>
      ))}
      {shown ? (
        <PortFrame
          key={shown.port}
          port={shown}
          ports={ports}
          sharing={sharing}
          addresses={addresses}
          down={awake.down}
          onAsked={() => {
            ports.chosen.value = shown.port;
          }}
        />
      ) : (
        <Empty icon="server" title="No port is open">
          <p>When a program on the computer starts to listen on a port, it is shown here.</p>
        </Empty>
      )}
    </section>
  );
}
