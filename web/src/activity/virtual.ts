/** A long list of which only what is near the screen is in the document. */
import {
  defaultRangeExtractor,
  elementScroll,
  observeElementOffset,
  observeElementRect,
  Virtualizer,
  type VirtualizerOptions,
} from "@tanstack/virtual-core";
import type { RefObject } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Listed {
  count: number;
  keyOf: (index: number) => string;
  estimate: (index: number) => number;
  /** A row that stays in the document, wherever the person scrolls: the one with the focus. -1: none. */
  held: () => number;
}

type List = Virtualizer<HTMLDivElement, HTMLElement>;

/** The list follows its end while that is in sight, and stays where the person is when rows come before or change. */
export function useVirtual(scroller: RefObject<HTMLDivElement | null>, listed: Listed): List {
  const [, draw] = useState(0);
  const latest = useRef(listed);
  latest.current = listed;
  const options: VirtualizerOptions<HTMLDivElement, HTMLElement> = {
    count: listed.count,
    getScrollElement: () => scroller.current,
    getItemKey: (index) => latest.current.keyOf(index),
    estimateSize: (index) => latest.current.estimate(index),
    rangeExtractor: (range) => {
      const near = defaultRangeExtractor(range);
      const held = latest.current.held();
      return held < 0 || held >= latest.current.count || near.includes(held)
        ? near
        : [...near, held].sort((a, b) => a - b);
    },
    overscan: 8,
    gap: 8, // distances of the scale in base.css
    paddingStart: 12,
    paddingEnd: 12,
    anchorTo: "end",
    followOnAppend: true,
    scrollEndThreshold: 24,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    onChange: () => draw((turn) => turn + 1),
  };
  const list = useMemo(() => new Virtualizer<HTMLDivElement, HTMLElement>(options), []);
  list.setOptions(options);
  useLayoutEffect(() => list._didMount(), [list]);
  useLayoutEffect(() => list._willUpdate());
  // A person who comes wants the news: the list begins at its end.
  useLayoutEffect(() => list.scrollToEnd(), [list]);
  return list;
}
