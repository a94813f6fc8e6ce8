/** The page's side of the viewer frame: opens it, feeds it, and answers the little it may ask. */
import { effect, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { readPage } from "../common/page";
import { dark } from "../common/theme";
import { ASSET_NAME, type FromViewerFrame, type Show, type ToViewer } from "../viewer/messages";

const FRAME_LIMIT_MS = 10_000;
const LONGEST_FRAME_LIMIT_MS = 60_000;
const PING_MS = 1_000;
/** Pings in a row without an answer after which the frame is given up: a large sheet is busy for a while, no picture is. */
const MAX_MISSED_PICTURE = 8;
const MAX_MISSED = 90;

export const TOO_LONG = "This picture took too long to draw, so it was given up.";
const TOO_LONG_FILE = "This file took too long to show, so it was given up.";

/** What the page has to do with a text that is being edited in the frame. */
export interface EditorPort {
  onChanged: () => void;
  onSave: () => void;
  /** Set while the frame is there: asks it for the text. */
  read: (() => Promise<string>) | null;
}

const READ_LIMIT_MS = 10_000;

export function ViewerFrame(props: {
  assets: string;
  show: Show;
  onShown: () => void;
  onFailed: (message: string) => void;
  onLink: (href: string) => void;
  /** A text that is being edited. */
  editor?: EditorPort;
}) {
  const frame = useRef<HTMLIFrameElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const port = useRef<MessagePort | null>(null);
  /** The frame whose first document has a channel: a later one in its place is given none. */
  const served = useRef<HTMLIFrameElement | null>(null);
  const turn = useSignal(0);
  const silent = useRef(0);
  const missed = useRef(0);
  const asked = useRef(new Map<number, (text: string) => void>());

  // Before the next task: a frame that is quick to load, in a page that is slow to paint, would not be heard.
  useLayoutEffect(() => {
    const undo: (() => void)[] = [];
    const say = (message: ToViewer, transfer: Transferable[] = []) =>
      port.current?.postMessage(message, transfer);
    const feed = () => {
      // A copy goes over: the page keeps its own, to show the file again.
      const bytes = latest.current.show.bytes.slice(0);
      say({ ...latest.current.show, bytes }, [bytes]);
    };
    const asset = async (id: number, name: string) => {
      let bytes: ArrayBuffer | null = null;
      if (ASSET_NAME.test(name)) {
        const response = await fetch(latest.current.assets + name).catch(() => null);
        if (response?.ok) bytes = await response.arrayBuffer();
      }
      say({ type: "asset", id, bytes }, bytes ? [bytes] : []);
    };
    const take = (message: FromViewerFrame) => {
      missed.current = 0;
      switch (message.type) {
        case "ready":
          undo.push(effect(() => say({ type: "theme", dark: dark.value })));
          feed();
          break;
        case "shown":
          latest.current.onShown();
          break;
        case "failed":
          latest.current.onFailed(String(message.message).slice(0, 500));
          break;
        case "link":
          latest.current.onLink(String(message.href).slice(0, 2000));
          break;
        case "changed":
          latest.current.editor?.onChanged();
          break;
        case "save":
          latest.current.editor?.onSave();
          break;
        case "text":
          asked.current.get(message.id)?.(String(message.text));
          asked.current.delete(message.id);
          break;
        case "asset":
          void asset(message.id, String(message.name));
          break;
      }
    };
    const onLoaded = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow || event.data !== "cubicle-viewer-loaded") return;
      port.current?.close();
      port.current = null;
      if (served.current === frame.current) {
        // Loaded again, as a frame is that the page moves, or taken over by what a file led to: another frame starts anew.
        turn.value += 1;
        return;
      }
      served.current = frame.current;
      const channel = new MessageChannel();
      channel.port1.onmessage = (reply: MessageEvent<FromViewerFrame>) => take(reply.data);
      port.current = channel.port1;
      // The frame's origin is opaque, so no origin can be named; what goes over is only one end of a channel.
      frame.current?.contentWindow?.postMessage("cubicle-viewer", "*", [channel.port2]);
    };
    addEventListener("message", onLoaded);
    undo.push(() => removeEventListener("message", onLoaded));
    return () => {
      for (const step of undo) step();
      port.current?.close();
    };
  }, []);

  useEffect(() => {
    const { editor } = props;
    if (!editor) return;
    let last = 0;
    editor.read = () =>
      new Promise((resolve, reject) => {
        last += 1;
        const id = last;
        asked.current.set(id, resolve);
        setTimeout(() => {
          if (asked.current.delete(id)) reject(new Error("The editor did not answer."));
        }, READ_LIMIT_MS);
        port.current?.postMessage({ type: "read", id } satisfies ToViewer);
      });
    return () => {
      editor.read = null;
    };
  }, [props.editor]);

  useEffect(() => {
    const bytes = props.show.bytes.slice(0);
    port.current?.postMessage({ ...props.show, bytes } satisfies Show, [bytes]);
  }, [props.show]);

  // A file can keep its frame busy for ever. The frame has a process of its own, and this page goes on. Counted by turns
  // of this timer, not by the clock: a computer that slept, or a tab that nobody saw, has missed nothing.
  useEffect(() => {
    missed.current = 0;
    const most = props.show.kind === "svg" ? MAX_MISSED_PICTURE : MAX_MISSED;
    const timer = setInterval(() => {
      if (!port.current || document.visibilityState !== "visible") return;
      missed.current += 1;
      if (missed.current > most)
        latest.current.onFailed(props.show.kind === "svg" ? TOO_LONG : TOO_LONG_FILE);
      else port.current.postMessage({ type: "ping" } satisfies ToViewer);
    }, PING_MS);
    return () => clearInterval(timer);
  }, [props.show]);

  // A frame whose own page could not be had never says so.
  useEffect(() => {
    const wait = Math.min(FRAME_LIMIT_MS * 2 ** silent.current, LONGEST_FRAME_LIMIT_MS);
    const timer = setTimeout(() => {
      if (served.current === frame.current) return;
      silent.current += 1;
      turn.value += 1;
    }, wait);
    return () => clearTimeout(timer);
  }, [turn.value]);

  return (
    <iframe
      key={turn.value}
      ref={frame}
      class="file-frame"
      title={`Contents of ${props.show.name}`}
      sandbox="allow-scripts"
      src={`${props.assets}viewer${readPage().card ? "?card=1" : ""}`}
    />
  );
}
