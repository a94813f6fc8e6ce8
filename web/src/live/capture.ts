/** Takes the person's mouse, wheel, touch, keys, input method and clipboard, and drives the page with them. */
import { button, keyPlan, modifiers, toPage, wheelPixels } from "./input";
import type { LiveView } from "./view";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
/** A finger that moves less than this taps; one that rests this long asks for the menu. */
const TAP_PX = 10;
const LONG_PRESS_MS = 600;

type Point = { x: number; y: number };

export function capture(view: LiveView, canvas: HTMLCanvasElement, keys: HTMLTextAreaElement): () => void {
  const stop = new AbortController();
  const on = <K extends keyof HTMLElementEventMap>(
    element: HTMLElement,
    type: K,
    handler: (event: HTMLElementEventMap[K]) => void,
    passive = false,
  ) => element.addEventListener(type, handler, { signal: stop.signal, passive });

  const at = (event: { clientX: number; clientY: number }): Point => {
    const { w, h } = view.viewport.value;
    return toPage(event.clientX, event.clientY, canvas.getBoundingClientRect(), w, h);
  };
  captureMouse(view, canvas, keys, on, at);
  captureTouch(view, canvas, keys, on, at);
  captureKeys(view, keys, on);
  return () => stop.abort();
}

type On = <K extends keyof HTMLElementEventMap>(
  element: HTMLElement,
  type: K,
  handler: (event: HTMLElementEventMap[K]) => void,
  passive?: boolean,
) => void;
type At = (event: { clientX: number; clientY: number }) => Point;

function captureMouse(
  view: LiveView,
  canvas: HTMLCanvasElement,
  keys: HTMLTextAreaElement,
  on: On,
  at: At,
): void {
  let move: PointerEvent | null = null;
  let wheel = { dx: 0, dy: 0 };
  let clicks = 0;
  let lastDown = { time: 0, x: 0, y: 0, button: -1 };

  // One move and one wheel a picture of the screen: more would only queue up.
  const flush = () => {
    const event = move;
    move = null;
    if (event) {
      const held =
        event.buttons & 1 ? "left" : event.buttons & 2 ? "right" : event.buttons & 4 ? "middle" : "none";
      const { x, y } = at(event);
      view.drive({
        type: "mouse",
        event: "move",
        x,
        y,
        button: held,
        buttons: event.buttons,
        clicks: 0,
        modifiers: modifiers(event),
      });
    }
  };
  const send = (event: PointerEvent, kind: "down" | "up") => {
    flush();
    const { x, y } = at(event);
    view.drive({
      type: "mouse",
      event: kind,
      x,
      y,
      button: button(event.button),
      buttons: event.buttons,
      clicks,
      modifiers: modifiers(event),
    });
  };
  on(canvas, "pointermove", (event) => {
    if (event.pointerType === "touch" || !view.driving) return;
    if (!move) requestAnimationFrame(flush);
    move = event;
  });
  on(canvas, "pointerdown", (event) => {
    if (event.pointerType === "touch" || !view.driving) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    keys.focus({ preventScroll: true });
    const again =
      event.timeStamp - lastDown.time < 500 &&
      event.button === lastDown.button &&
      Math.hypot(event.clientX - lastDown.x, event.clientY - lastDown.y) < 5;
    clicks = again ? Math.min(3, clicks + 1) : 1;
    lastDown = { time: event.timeStamp, x: event.clientX, y: event.clientY, button: event.button };
    send(event, "down");
  });
  on(canvas, "pointerup", (event) => {
    if (event.pointerType !== "touch" && view.driving) send(event, "up");
  });
  on(canvas, "contextmenu", (event) => {
    if (view.driving) event.preventDefault();
  });
  on(canvas, "wheel", (event) => {
    if (!view.driving) return;
    event.preventDefault();
    const first = wheel.dx === 0 && wheel.dy === 0;
    wheel.dx += wheelPixels(event.deltaX, event.deltaMode, canvas.clientWidth);
    wheel.dy += wheelPixels(event.deltaY, event.deltaMode, canvas.clientHeight);
    const { x, y } = at(event);
    const held = modifiers(event);
    if (first) {
      requestAnimationFrame(() => {
        view.drive({ type: "wheel", x, y, ...wheel, modifiers: held });
        wheel = { dx: 0, dy: 0 };
      });
    }
  });
}

/** A tap clicks, a drag scrolls, a long press is the right button: the page never learns of touch. */
function captureTouch(
  view: LiveView,
  canvas: HTMLCanvasElement,
  keys: HTMLTextAreaElement,
  on: On,
  at: At,
): void {
  let start: Touch | null = null;
  let last: Touch | null = null;
  let dragged = false;
  let menu: ReturnType<typeof setTimeout> | undefined;

  const click = (touch: Touch, which: "left" | "right") => {
    const { x, y } = at(touch);
    const common = { type: "mouse", x, y, modifiers: 0 } as const;
    const bit = which === "left" ? 1 : 2;
    view.drive({ ...common, event: "move", button: "none", buttons: 0, clicks: 0 });
    view.drive({ ...common, event: "down", button: which, buttons: bit, clicks: 1 });
    view.drive({ ...common, event: "up", button: which, buttons: 0, clicks: 1 });
  };
  on(canvas, "touchstart", (event) => {
    if (!view.driving || event.touches.length !== 1) return;
    event.preventDefault();
    const touch = event.touches[0] as Touch;
    start = touch;
    last = touch;
    dragged = false;
    clearTimeout(menu);
    menu = setTimeout(() => {
      if (start && !dragged) click(start, "right");
      start = null;
    }, LONG_PRESS_MS);
  });
  on(canvas, "touchmove", (event) => {
    const touch = event.touches[0];
    if (!start || !last || !touch) return;
    event.preventDefault();
    if (!dragged && Math.hypot(touch.clientX - start.clientX, touch.clientY - start.clientY) < TAP_PX) return;
    dragged = true;
    clearTimeout(menu);
    const scale = view.viewport.value.w / Math.max(1, canvas.clientWidth);
    const { x, y } = at(start);
    const dx = Math.round((last.clientX - touch.clientX) * scale);
    const dy = Math.round((last.clientY - touch.clientY) * scale);
    view.drive({ type: "wheel", x, y, dx, dy, modifiers: 0 });
    last = touch;
  });
  on(canvas, "touchend", (event) => {
    clearTimeout(menu);
    if (!start) return;
    event.preventDefault();
    if (!dragged) {
      click(start, "left");
      keys.focus({ preventScroll: true });
    }
    start = null;
  });
}

function captureKeys(view: LiveView, keys: HTMLTextAreaElement, on: On): void {
  const empty = () => {
    keys.value = "";
  };
  const onKey = (event: KeyboardEvent) => {
    if (!view.driving) return;
    // The way out for those who use no mouse.
    if (event.key === "Escape" && event.shiftKey) {
      keys.blur();
      return;
    }
    const plan = keyPlan(event, MAC);
    if (plan.do === "ignore" || plan.do === "paste") return;
    if (plan.do === "copy") {
      event.preventDefault();
      view.drive({ type: "copy", cut: plan.cut });
      return;
    }
    view.drive(plan.message);
    if (!plan.typed) event.preventDefault();
  };
  on(keys, "keydown", onKey);
  on(keys, "keyup", onKey);
  on(keys, "compositionupdate", (event) => {
    const end = event.data.length;
    view.drive({ type: "composition", text: event.data, start: end, end });
  });
  on(keys, "compositionend", (event) => {
    view.drive(
      event.data ? { type: "text", text: event.data } : { type: "composition", text: "", start: 0, end: 0 },
    );
    empty();
  });
  on(keys, "input", (event) => {
    const { isComposing, inputType } = event as InputEvent;
    if (isComposing || inputType === "insertCompositionText" || inputType === "insertFromPaste") return;
    if (keys.value) view.drive({ type: "text", text: keys.value });
    empty();
  });
  on(keys, "paste", (event) => {
    event.preventDefault();
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text) view.drive({ type: "paste", text: text.slice(0, 1_000_000) });
  });
}
