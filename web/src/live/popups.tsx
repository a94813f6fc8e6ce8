/** What the frames do not hold: JavaScript dialogs, lists of options, date and colour inputs, file choosers. */
import { useSignal } from "@preact/signals";
import { shownName } from "../common/format";
import type { Addresses } from "../common/page";
import { sendFile } from "../common/upload";
import { Dialog } from "../ui/parts";
import { toast } from "../ui/toast";
import type { Popup, Rect } from "./protocol";
import type { LiveView } from "./view";

type Of<T extends Popup["type"]> = Extract<Popup, { type: T }>;

const TITLES = {
  alert: "The page says",
  confirm: "The page asks",
  prompt: "The page asks for text",
  beforeunload: "Leave this page?",
};

function ScriptDialog({ view, popup }: { view: LiveView; popup: Of<"dialog"> }) {
  const text = useSignal(popup.value);
  const answer = (accept: boolean) =>
    view.close(popup, { type: "dialog", id: popup.id, accept, text: text.value });
  const message = popup.message.split("\n").map(shownName).join("\n");
  if (!view.driving) {
    return (
      <div class="notice warn" role="status">
        <span class="grow cut">
          {TITLES[popup.kind]}: “{message}”. It waits for an answer: take control to give one.
        </span>
      </div>
    );
  }
  return (
    <Dialog title={TITLES[popup.kind]} onClose={() => answer(popup.kind === "alert")}>
      <pre>{message || "Changes you made may not be saved."}</pre>
      {popup.kind === "prompt" && (
        <input
          aria-label="Your answer"
          autoFocus
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") answer(true);
          }}
        />
      )}
      <div class="actions">
        {popup.kind !== "alert" && (
          <button type="button" onClick={() => answer(false)}>
            {popup.kind === "beforeunload" ? "Stay" : "Cancel"}
          </button>
        )}
        <button
          type="button"
          class="primary"
          autoFocus={popup.kind !== "prompt"}
          onClick={() => answer(true)}
        >
          {popup.kind === "beforeunload" ? "Leave" : "OK"}
        </button>
      </div>
    </Dialog>
  );
}

/** Below the field it belongs to, in shares of the picture, so that it follows the scale. */
function place(rect: Rect, viewport: { w: number; h: number }): Record<string, string> {
  const share = (value: number, whole: number) => `${Math.min(100, Math.max(0, (value / whole) * 100))}%`;
  const low = rect.y + rect.h > viewport.h * 0.6;
  return {
    left: share(Math.min(rect.x, viewport.w * 0.75), viewport.w),
    "min-width": share(rect.w, viewport.w),
    ...(low
      ? { bottom: share(viewport.h - rect.y, viewport.h) }
      : { top: share(rect.y + rect.h, viewport.h) }),
  };
}

function SelectList({ view, popup }: { view: LiveView; popup: Of<"select"> }) {
  const chosen = useSignal(new Set(popup.options.filter((o) => o.selected).map((o) => o.index)));
  const done = (indices: number[] | null) =>
    view.close(popup, { type: "select", id: popup.id, chosen: indices });
  const groups = Map.groupBy(popup.options, (o) => o.group);
  return (
    <div class="live-popup" style={place(popup.rect, view.viewport.value)}>
      <select
        ref={(element) => element?.focus()}
        aria-label="Options of the list in the page"
        multiple={popup.multiple}
        size={Math.min(10, Math.max(2, popup.options.length))}
        onChange={(event) => {
          chosen.value = new Set([...event.currentTarget.selectedOptions].map((o) => Number(o.value)));
        }}
        onClick={() => {
          if (!popup.multiple && chosen.value.size) done([...chosen.value]);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") done([...chosen.value]);
          if (event.key === "Escape") done(null);
        }}
      >
        {[...groups].map(([group, options]) => {
          const items = options.map((o) => (
            <option key={o.index} value={o.index} disabled={o.disabled} selected={o.selected}>
              {shownName(o.label)}
            </option>
          ));
          return group ? (
            <optgroup key={group} label={shownName(group)}>
              {items}
            </optgroup>
          ) : (
            items
          );
        })}
      </select>
      <div class="actions">
        <button type="button" onClick={() => done(null)}>
          Cancel
        </button>
        <button type="button" class="primary" onClick={() => done([...chosen.value])}>
          Choose
        </button>
      </div>
    </div>
  );
}

function InputPicker({ view, popup }: { view: LiveView; popup: Of<"picker"> }) {
  const value = useSignal(popup.value);
  const done = (text: string | null) => view.close(popup, { type: "picker", id: popup.id, value: text });
  return (
    <form
      class="live-popup"
      style={place(popup.rect, view.viewport.value)}
      onSubmit={(event) => {
        event.preventDefault();
        done(value.value);
      }}
    >
      <input
        ref={(element) => element?.focus()}
        aria-label="Value of the field in the page"
        type={popup.kind}
        value={popup.value}
        min={popup.min}
        max={popup.max}
        step={popup.step || undefined}
        onInput={(event) => {
          value.value = event.currentTarget.value;
        }}
      />
      <div class="actions">
        <button type="button" onClick={() => done(null)}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Set
        </button>
      </div>
    </form>
  );
}

function FileChooser({
  view,
  popup,
  addresses,
}: {
  view: LiveView;
  popup: Of<"chooser">;
  addresses: Addresses;
}) {
  const share = useSignal<number | null>(null);
  const done = (names: string[] | null) => view.close(popup, { type: "files", id: popup.id, names });
  const upload = async (files: File[]) => {
    const cancel = new AbortController();
    try {
      for (const [i, file] of files.entries()) {
        await sendFile(
          addresses.upload(file.name),
          file,
          (s) => (share.value = (i + s) / files.length),
          cancel.signal,
        );
      }
      done(files.map((f) => f.name));
    } catch (error) {
      share.value = null;
      toast(error instanceof Error ? error.message : "The upload failed.");
    }
  };
  return (
    <Dialog
      title={popup.multiple ? "The page asks for files" : "The page asks for a file"}
      onClose={() => done(null)}
    >
      <p class="muted">What you choose is uploaded to this chat and given to the page.</p>
      <input
        type="file"
        aria-label="Files for the page"
        multiple={popup.multiple}
        accept={popup.accept}
        disabled={share.value !== null}
        onChange={(event) => {
          const files = [...(event.currentTarget.files ?? [])];
          if (files.length) void upload(files);
        }}
      />
      {share.value !== null && <progress value={share.value} aria-label="Upload" />}
      <div class="actions">
        <button type="button" onClick={() => done(null)}>
          Cancel
        </button>
      </div>
    </Dialog>
  );
}

export function Popups({ view, addresses }: { view: LiveView; addresses: Addresses }) {
  return (
    <>
      {view.popups.value.map((popup) => {
        if (popup.type === "dialog") return <ScriptDialog key={popup.id} view={view} popup={popup} />;
        if (!view.driving) return null;
        if (popup.type === "select") return <SelectList key={popup.id} view={view} popup={popup} />;
        if (popup.type === "picker") return <InputPicker key={popup.id} view={view} popup={popup} />;
        return <FileChooser key={popup.id} view={view} popup={popup} addresses={addresses} />;
      })}
    </>
  );
}
