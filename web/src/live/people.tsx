/** Who else looks at the live browser, and who asks for control of it. */
import { useSignal } from "@preact/signals";
import { shownName } from "../common/format";
import { Icon } from "../ui/icon";
import { Dialog } from "../ui/parts";
import { driverName } from "./name";
import type { Watcher } from "./protocol";
import type { LiveView } from "./view";

export const nameOf = (watcher: Watcher): string =>
  shownName(watcher.name).slice(0, 40) || `Guest ${watcher.viewer.replace(/^v/, "")}`;

function NameDialog({ view, onClose }: { view: LiveView; onClose: () => void }) {
  const name = useSignal(driverName.value);
  const save = () => {
    driverName.value = name.value.trim().slice(0, 40);
    view.rename(driverName.value);
    onClose();
  };
  return (
    <Dialog title="Watching now" onClose={onClose}>
      <ul class="live-watchers">
        {view.watchers.value.map((one) => (
          <li key={one.viewer}>
            {nameOf(one)}
            {one.viewer === view.me.value && " (you)"}
            {one.view_only && <span class="muted"> view only</span>}
          </li>
        ))}
        {view.unnamed.value > 0 && <li class="muted">and {view.unnamed.value} more</li>}
      </ul>
      <label class="live-name">
        Your name
        <input
          value={name.value}
          maxLength={40}
          autoComplete="nickname"
          onInput={(event) => {
            name.value = event.currentTarget.value;
          }}
        />
      </label>
      <div class="actions">
        <button type="button" onClick={onClose}>
          Close
        </button>
        <button type="submit" class="primary" onClick={save}>
          Save the name
        </button>
      </div>
    </Dialog>
  );
}

export function Watchers({ view }: { view: LiveView }) {
  const open = useSignal(false);
  const count = view.watchers.value.length + view.unnamed.value;
  const others = view.watchers.value.filter((one) => one.viewer !== view.me.value).map(nameOf);
  if (!count || view.link.state.value.kind !== "open") return null;
  return (
    <>
      <button
        type="button"
        class="chip live-audience"
        title={others.length ? `Also watching: ${others.join(", ")}` : "Only you are watching"}
        onClick={() => {
          open.value = true;
        }}
      >
        <Icon name="eye" />
        {count === 1 ? "1 watching" : `${count} watching`}
      </button>
      {open.value && (
        <NameDialog
          view={view}
          onClose={() => {
            open.value = false;
          }}
        />
      )}
    </>
  );
}

/** To the one who drives: others want to. */
export function Asking({ view }: { view: LiveView }) {
  if (!view.driving) return null;
  return (
    <>
      {view.asking.value.map(({ viewer, name }) => {
        const who = shownName(name).slice(0, 40) || `Guest ${viewer.replace(/^v/, "")}`;
        return (
          <div class="notice warn" role="alert" key={viewer}>
            <span class="grow">{who} asks for control.</span>
            <button type="button" class="primary" onClick={() => view.answer(viewer, "give")}>
              Give control
            </button>
            <button type="button" onClick={() => view.answer(viewer, "decline")}>
              Not now
            </button>
          </div>
        );
      })}
    </>
  );
}
