/** The home page: what this is, how to connect, a demo, and the chats used last. */
import "./home.css";
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { request } from "../common/http";
import { Addresses, type PageData, readPage } from "../common/page";
import { start } from "../common/start";
import { Brand } from "../ui/brand";
import { Icon } from "../ui/icon";
import { ThemeButton } from "../ui/parts";
import { toast } from "../ui/toast";
import { Chats } from "./chats";
import { Connect } from "./connect";
import { HomeFeed } from "./feed";
import type { DemoState } from "./home.generated";
import { Scene } from "./scene";

/** One click plays the script and leads to where it can be watched. */
function Demo({ root, demo }: { root: URL; demo: DemoState | undefined }) {
  const busy = useSignal(false);
  const play = async () => {
    busy.value = true;
    try {
      const answer = await request(new URL("api/demo", root).href, { method: "POST" });
      const { chat } = (await answer.json()) as DemoState;
      location.assign(new URL(`preview/${encodeURIComponent(chat)}/?demo=1`, root).href);
    } catch (error) {
      busy.value = false;
      toast(error instanceof Error ? error.message : "The demo could not be started.");
    }
  };
  return (
    <>
      <div class="hero-actions">
        <button type="button" class="primary" disabled={busy.value} onClick={() => void play()}>
          <Icon name="play" />
          {busy.value ? "Starting…" : demo?.state === "playing" ? "Watch the demo" : "Play the demo"}
        </button>
        <p class="muted">
          Try it without a client: for 20 seconds a script draws a chart, drives the browser and mends a
          failing test. Then it is your turn.
        </p>
      </div>
      {demo?.state === "failed" && <p class="demo-failed">The last one stopped: {demo.says}</p>}
    </>
  );
}

function Page({ page }: { page: PageData }) {
  const addresses = useMemo(() => new Addresses(page), [page]);
  const feed = useMemo(() => new HomeFeed(addresses.root), [addresses]);
  useEffect(() => feed.start(), [feed]);
  const { client, chats = [], demo } = feed.home.value;
  return (
    <div class="home">
      <header class="bar top">
        <Brand />
        <span class="grow" />
        <a class="button plain" href={new URL("admin", addresses.root).href}>
          Sandboxes
        </a>
        <a class="button plain wide-only" href={new URL("docs", addresses.root).href}>
          HTTP API
        </a>
        <ThemeButton />
      </header>
      {feed.problem.value && (
        <div class="notice warn" role="alert">
          <span class="grow">{feed.problem.value}</span>
          {feed.signedOut.value && (
            <a class="button" href={addresses.login()}>
              Sign in
            </a>
          )}
        </div>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is scrolled by the keyboard, too */}
      <main class="home-main" tabIndex={0}>
        <div class="home-column">
          <section class={`hero ${chats.length ? "known" : ""}`} aria-labelledby="hero-title">
            <div class="hero-words">
              <h1 id="hero-title">Your AI's computer is ready</h1>
              <p class="hero-lead">
                Every chat gets a Linux computer of its own, with files, a terminal and a browser. Watch it
                work, and take over when you like.
              </p>
              <Demo root={addresses.root} demo={demo} />
            </div>
            {!chats.length && <Scene />}
          </section>
          <Chats chats={chats} root={addresses.root} />
          <Connect root={addresses.root} client={client} />
        </div>
      </main>
    </div>
  );
}

start(<Page page={readPage()} />);
