/** A picture that can be made larger and moved about: by buttons, keys, the wheel and two fingers. */

export interface Zoom {
  /** Percent of the picture's own size; null: as large as fits. */
  readonly percent: number | null;
  by(factor: number): void;
  fit(): void;
  actual(): void;
}

const LEAST = 0.05;
const MOST = 32;
const KEYS: Record<string, (zoom: Zoom) => void> = {
  "+": (zoom) => zoom.by(1.25),
  "=": (zoom) => zoom.by(1.25),
  "-": (zoom) => zoom.by(0.8),
  "0": (zoom) => zoom.fit(),
  "1": (zoom) => zoom.actual(),
};

/** The scale at which a picture of this size fits, never larger than it is. */
export function fitting(width: number, height: number, room: { width: number; height: number }): number {
  if (!(width > 0 && height > 0 && room.width > 0 && room.height > 0)) return 1;
  return Math.min(1, room.width / width, room.height / height);
}

export const clamp = (scale: number): number => Math.min(MOST, Math.max(LEAST, scale));

/** `host` scrolls; `picture` is its only child. `told` is called with each change. */
export function zoomable(host: HTMLElement, picture: HTMLImageElement, told: (zoom: Zoom) => void): Zoom {
  let scale: number | null = null;
  const room = () => ({ width: host.clientWidth - 32, height: host.clientHeight - 32 });
  const own = () => ({
    width: picture.naturalWidth || picture.width || 300,
    height: picture.naturalHeight || picture.height || 150,
  });
  const now = () => scale ?? fitting(own().width, own().height, room());
  const draw = () => {
    if (scale === null) {
      picture.style.cssText = "";
    } else {
      const { width, height } = own();
      picture.style.cssText = `width:${width * scale}px;height:${height * scale}px;max-width:none;max-height:none`;
    }
    host.classList.toggle("zoomed", scale !== null);
    told(zoom);
  };
  /** The point under the pointer stays where it is. */
  const to = (next: number, x = host.clientWidth / 2, y = host.clientHeight / 2) => {
    const before = now();
    scale = clamp(next);
    const left = (host.scrollLeft + x) * (scale / before) - x;
    const top = (host.scrollTop + y) * (scale / before) - y;
    draw();
    host.scrollTo(left, top);
  };
  const zoom: Zoom = {
    get percent() {
      return scale === null ? null : Math.round(scale * 100);
    },
    by: (factor) => to(now() * factor),
    fit: () => {
      scale = null;
      draw();
    },
    actual: () => to(1),
  };
  host.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act(zoom);
  });
  host.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = host.getBoundingClientRect();
      to(now() * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );
  picture.addEventListener("dblclick", () => (scale === null ? zoom.actual() : zoom.fit()));
  picture.draggable = false;
  drag(host, (from) => to(from), now);
  return zoom;
}

/** One pointer moves the picture, two change its size. */
function drag(host: HTMLElement, to: (scale: number) => void, now: () => number): void {
  const pointers = new Map<number, { x: number; y: number }>();
  let pinch: { distance: number; scale: number } | null = null;
  const distance = () => {
    const [a, b] = [...pointers.values()];
    return a && b ? Math.hypot(a.x - b.x, a.y - b.y) : 0;
  };
  host.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (pointers.size === 2) pinch = { distance: distance(), scale: now() };
  });
  host.addEventListener("pointermove", (event) => {
    const last = pointers.get(event.pointerId);
    if (!last) return;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (pinch && pinch.distance > 0) to(pinch.scale * (distance() / pinch.distance));
    else if (event.pointerType === "mouse") host.scrollBy(last.x - event.clientX, last.y - event.clientY);
  });
  const end = (event: PointerEvent) => {
    pointers.delete(event.pointerId);
    pinch = null;
  };
  for (const type of ["pointerup", "pointercancel", "pointerleave"] as const)
    host.addEventListener(type, end);
}
