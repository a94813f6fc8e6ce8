/** An office file as LibreOffice prints it: the sandbox makes a PDF of it, if its image can. */
import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { HttpError, request } from "../common/http";
import type { Addresses } from "../common/page";
import type { Show } from "../viewer/messages";
import { ViewerFrame } from "./frame";

const LIMIT_MS = 120_000;
/** The image has none: it is not asked again. */
export const noOffice = signal(false);

export function OfficePdf(props: {
  addresses: Addresses;
  assets: string;
  path: string;
  /** What is shown where no PDF can be had; null if there is nothing else. */
  otherwise: ComponentChildren;
  onLink: (href: string) => void;
}) {
  const { addresses, path } = props;
  const show = useSignal<Show | null>(null);
  const problem = useSignal("");
  const name = path.slice(path.lastIndexOf("/") + 1);
  useEffect(() => {
    const stop = new AbortController();
    request(addresses.pdf(path), { signal: stop.signal }, LIMIT_MS)
      .then(async (response) => {
        const bytes = await response.arrayBuffer();
        show.value = { type: "show", kind: "pdf", name, bytes, size: bytes.byteLength, base: null };
      })
      .catch((error: unknown) => {
        if (stop.signal.aborted) return;
        if (error instanceof HttpError && error.status === 501) noOffice.value = true;
        problem.value = error instanceof Error ? error.message : "It could not be converted.";
      });
    return () => stop.abort();
  }, [path]);
  if (problem.value)
    return (
      props.otherwise ?? (
        <div class="empty">
          <h2>This file cannot be shown</h2>
          <p>{problem.value}</p>
          <a class="button" href={addresses.download(path)} download>
            Download
          </a>
        </div>
      )
    );
  if (!show.value)
    return (
      <p class="file-wait muted" role="status">
        LibreOffice makes a PDF of it. This takes some seconds…
      </p>
    );
  return (
    <ViewerFrame
      assets={props.assets}
      show={show.value}
      onShown={() => undefined}
      onFailed={(message) => {
        problem.value = message;
      }}
      onLink={props.onLink}
    />
  );
}
