/** A picture with the tools that make it larger. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Zoom, zoomable } from "../viewer/zoom";

export function ZoomedPicture(props: { source: string; name: string; onError: () => void }) {
  const place = useRef<HTMLDivElement>(null);
  const picture = useRef<HTMLImageElement>(null);
  const zoom = useRef<Zoom | null>(null);
  const percent = useSignal<number | null>(null);
  useEffect(() => {
    if (!place.current || !picture.current) return;
    zoom.current = zoomable(place.current, picture.current, (now) => {
      percent.value = now.percent;
    });
  }, []);
  return (
    <div class="page-view">
      <div class="page-bar">
        <button type="button" aria-label="Smaller" onClick={() => zoom.current?.by(0.8)}>
          −
        </button>
        <span class="zoom-percent muted" role="status">
          {percent.value === null ? "Fits" : `${percent.value} %`}
        </span>
        <button type="button" aria-label="Larger" onClick={() => zoom.current?.by(1.25)}>
          +
        </button>
        <button type="button" aria-pressed={percent.value === null} onClick={() => zoom.current?.fit()}>
          Fit
        </button>
        <button type="button" aria-pressed={percent.value === 100} onClick={() => zoom.current?.actual()}>
          1:1
        </button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys */}
      <div class="file-media picture" ref={place} tabIndex={0}>
        <img ref={picture} src={props.source} alt={props.name} onError={props.onError} />
      </div>
    </div>
  );
}
