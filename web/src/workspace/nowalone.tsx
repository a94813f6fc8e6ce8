/** On a page that shows one panel: what the model does now. */
import { computed, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Addresses } from "../common/page";
import { NowLine } from "./now";
import { nowOf } from "./nowline";
import { NowStream } from "./nowstream";

export function NowAlone({ addresses, name }: { addresses: Addresses; name: string }) {
  const stream = useMemo(() => new NowStream(addresses.events()), [addresses]);
  useEffect(() => stream.start(), [stream]);
  const now = useMemo(
    () => computed(() => nowOf(stream.calls.value, { sandbox: "", waiting: "" })),
    [stream],
  );
  const rest = useMemo(() => signal(`${name} · ${addresses.chat}`), [addresses, name]);
  return (
    <div class="bar now-alone">
      <NowLine now={now} rest={rest} />
    </div>
  );
}
