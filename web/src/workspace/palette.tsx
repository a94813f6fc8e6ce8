/** Ctrl/Cmd-K: everything by name. */
import { useSignal } from "@preact/signals";
import { shownName } from "../common/format";
import { Dialog } from "../ui/parts";

export interface Command {
  title: string;
  run: () => void;
}

const MOST = 12;

export function Palette({ commands, onClose }: { commands: Command[]; onClose: () => void }) {
  const text = useSignal("");
  const at = useSignal(0);
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands.filter((c) => words.every((w) => c.title.toLowerCase().includes(w))).slice(0, MOST);
  const run = (command: Command | undefined) => {
    onClose();
    command?.run();
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={`palette-${at.value}`}
        aria-label="Command or file"
        placeholder="Command or file"
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          at.value = 0;
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") at.value = Math.min(found.length - 1, at.value + 1);
          else if (event.key === "ArrowUp") at.value = Math.max(0, at.value - 1);
          else if (event.key === "Enter") run(found[at.value]);
          else return;
          event.preventDefault();
        }}
      />
      <div class="palette" id="palette-list" role="listbox" aria-label="Results">
        {found.map((command, i) => (
          <button
            type="button"
            class="plain"
            role="option"
            id={`palette-${i}`}
            key={command.title}
            aria-selected={i === at.value}
            onClick={() => run(command)}
          >
            <span class="cut">{shownName(command.title)}</span>
          </button>
        ))}
        {!found.length && <p class="muted">Nothing has this name.</p>}
      </div>
    </Dialog>
  );
}
