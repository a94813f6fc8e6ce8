/** Which panel the address names: each has one, so that the back button and a copied address lead to it. */
import { PANELS, type PanelName, showPanel } from "./layout";

export interface Place {
  panel: PanelName | null;
  port: number | null;
  /** The view of the files panel. */
  view: "files" | "changes";
}

export function placeIn(address: string): Place {
  const { searchParams } = new URL(address);
  const panel = PANELS.find((name) => name === searchParams.get("panel")) ?? null;
  const port = Number(searchParams.get("port") ?? "");
  return {
    panel,
    port: Number.isInteger(port) && port > 0 && port < 65_536 ? port : null,
    view: searchParams.get("view") === "changes" ? "changes" : "files",
  };
}

/** The address with another place in it; the file that it names stays. */
export function addressOf(
  address: string,
  place: { panel: PanelName; port?: number | null; view?: string },
): string {
  const url = new URL(address);
  const put = (name: string, value: string | null) =>
    value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  put("panel", place.panel);
  put("port", place.panel === "ports" && place.port ? String(place.port) : null);
  put("view", place.panel === "files" && place.view === "changes" ? "changes" : null);
  return url.href;
}

/** A person goes there: the place before it is one step back. */
export function visitPanel(panel: PanelName, more: { port?: number | null; view?: string } = {}): void {
  showPanel(panel);
  const address = addressOf(location.href, { panel, ...more });
  if (address !== location.href) history.pushState(history.state, "", address);
}
