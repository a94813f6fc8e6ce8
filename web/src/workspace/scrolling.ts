/** A list that grows at its end is followed there, until the person scrolls away from it and comes back. */
import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** A fraction of a pixel, or of a line, is still the end. */
const NEAR_PX = 12;

export function useFollow<T extends HTMLElement>(
  grown: unknown,
): { ref: RefObject<T | null>; onScroll: () => void } {
  const ref = useRef<T>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    const box = ref.current;
    if (box && follows.current) box.scrollTop = box.scrollHeight;
  }, [grown]);
  const onScroll = () => {
    const box = ref.current;
    if (box) follows.current = box.scrollHeight - box.scrollTop - box.clientHeight <= NEAR_PX;
  };
  return { ref, onScroll };
}
