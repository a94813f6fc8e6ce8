/** Puts a page up: styles, theme, corner messages. */
import "../ui/base.css";
import { type ComponentChildren, render } from "preact";
import { Toasts } from "../ui/toast";
import { readPage, seen } from "./page";
import { followTheme } from "./theme";

export function start(page: ComponentChildren): void {
  followTheme();
  if (readPage().card && window.parent !== window) document.documentElement.dataset.card = "";
  const host = document.getElementById("app");
  if (!host) throw new Error("the page has no #app element");
  const unstarted = [...host.childNodes];
  host.replaceChildren();
  try {
    render(
      <>
        {page}
        <Toasts />
      </>,
      host,
    );
  } catch (error) {
    host.replaceChildren(...unstarted);
    throw error;
  }
  // A link to a part of a chat leaves no cookie: without its key, the page could not be loaded again.
  if (readPage().opens !== "chat") return;
  // Last: the page has read its address by now.
  const shown = seen(document.location.href);
  if (shown !== document.location.href) history.replaceState(history.state, "", shown);
}
