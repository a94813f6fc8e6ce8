/** Short messages in the corner. */
import { signal } from "@preact/signals";
import { IconButton } from "./parts";

interface Toast {
  id: number;
  text: string;
  action?: { label: string; run: () => void };
}

const toasts = signal<Toast[]>([]);
let last = 0;

function drop(id: number): void {
  toasts.value = toasts.value.filter((t) => t.id !== id);
}

export function toast(text: string, action?: Toast["action"], ms = action ? 12_000 : 4_000): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value.slice(-3), action ? { id, text, action } : { id, text }];
  setTimeout(() => drop(id), ms);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((t) => (
        <div class="toast" key={t.id}>
          <span class="grow">{t.text}</span>
          {t.action && (
            <button
              type="button"
              onClick={() => {
                t.action?.run();
                drop(t.id);
              }}
            >
              {t.action.label}
            </button>
          )}
          <IconButton icon="close" label="Dismiss" onClick={() => drop(t.id)} />
        </div>
      ))}
    </div>
  );
}

/** An address that the sandbox gave: the person sees it before it opens. */
export function offerLink(href: string): void {
  if (!URL.canParse(href)) return;
  const url = new URL(href);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    toast(`Links of type ${url.protocol} are not opened.`);
    return;
  }
  toast(`Open ${url.href.slice(0, 300)}?`, {
    label: "Open",
    run: () => window.open(url.href, "_blank", "noopener,noreferrer"),
  });
}
