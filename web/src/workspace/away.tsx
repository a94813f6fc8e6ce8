/** What a file's place shows while the service is away. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Backoff } from "../common/backoff";
import { isAway } from "../common/http";
import { Empty } from "../ui/parts";

/** The service is away: what was asked of it is asked again by itself, and when the person says so. */
export function Away(props: { why: string; failures: number; onRetry: () => void }) {
  const pauses = useRef(new Backoff(1_000, 15_000));
  const retry = useRef(props.onRetry);
  retry.current = props.onRetry;
  useEffect(() => {
    const again = () => retry.current();
    const timer = setTimeout(again, pauses.current.next());
    addEventListener("online", again);
    return () => {
      clearTimeout(timer);
      removeEventListener("online", again);
    };
  }, [props.failures]);
  return (
    <Empty icon="file" title="The file cannot be read now">
      <p role="status">{props.why} It is tried again by itself.</p>
      <button type="button" onClick={props.onRetry}>
        Try again
      </button>
    </Empty>
  );
}

/** Whether the service is away, and how often it was found so. */
export function useAway() {
  const away = useSignal({ why: "", failures: 0 });
  return {
    away: away.value,
    /** True if the failure is one that passes. */
    failed: (error: unknown): boolean => {
      if (!isAway(error)) return false;
      away.value = { why: (error as Error).message, failures: away.value.failures + 1 };
      return true;
    },
    back: () => {
      if (away.value.why) away.value = { why: "", failures: 0 };
    },
  };
}
