/** A button that opens a short list of actions. Arrow keys move in it; Escape, and a click elsewhere, close it. */
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon, type IconName } from "./icon";

export interface Action {
  title: string;
  icon: IconName;
  /** A link instead of something to run. */
  href?: string;
  download?: boolean;
  danger?: boolean;
  run?: () => void;
}

function Items({ label, actions, onClose }: { label: string; actions: Action[]; onClose: () => void }) {
  const list = useRef<HTMLDivElement>(null);
  const items = () => [...(list.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
  useLayoutEffect(() => {
    const box = list.current;
    if (!box) return;
    const { right, bottom } = box.getBoundingClientRect();
    if (bottom > innerHeight - 4) box.classList.add("above");
    if (right > innerWidth - 4) box.classList.add("left");
    items()[0]?.focus();
  }, []);
  useEffect(() => {
    const outside = (event: PointerEvent) => {
      if (!list.current?.parentElement?.contains(event.target as Node)) onClose();
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, []);
  const onKey = (event: KeyboardEvent) => {
    const all = items();
    const at = all.indexOf(document.activeElement as HTMLElement);
    if (event.key === "ArrowDown") all[(at + 1) % all.length]?.focus();
    else if (event.key === "ArrowUp") all[(at + all.length - 1) % all.length]?.focus();
    else if (event.key === "Home") all[0]?.focus();
    else if (event.key === "End") all.at(-1)?.focus();
    else if (event.key === "Escape" || event.key === "Tab") onClose();
    else return;
    event.stopPropagation();
    if (event.key !== "Tab") event.preventDefault();
  };
  return (
    <div class="menu" role="menu" aria-label={label} ref={list} onKeyDown={onKey}>
      {actions.map((action) =>
        action.href !== undefined ? (
          <a
            key={action.title}
            role="menuitem"
            class="button plain"
            href={action.href}
            download={action.download}
            onClick={onClose}
          >
            <Icon name={action.icon} />
            {action.title}
          </a>
        ) : (
          <button
            key={action.title}
            type="button"
            role="menuitem"
            class={`plain ${action.danger ? "danger" : ""}`}
            onClick={() => {
              onClose();
              action.run?.();
            }}
          >
            <Icon name={action.icon} />
            {action.title}
          </button>
        ),
      )}
    </div>
  );
}

export function MenuButton(props: {
  label: string;
  icon: IconName;
  actions: () => Action[];
  class?: string;
  children?: ComponentChildren;
  /** Whether it is open, where something else opens it, too. */
  opened?: Signal<boolean>;
  /** Where the keyboard goes when it closes, if not to the button. */
  back?: () => HTMLElement | null;
}) {
  const own = useSignal(false);
  const open = props.opened ?? own;
  const button = useRef<HTMLButtonElement>(null);
  const close = () => {
    open.value = false;
    (props.back?.() ?? button.current)?.focus({ preventScroll: true });
  };
  return (
    <div class={`menu-place ${props.class ?? ""}`}>
      <button
        ref={button}
        type="button"
        class="plain"
        title={props.label}
        aria-label={props.label}
        aria-haspopup="menu"
        aria-expanded={open.value}
        onClick={() => {
          open.value = !open.value;
        }}
      >
        <Icon name={props.icon} />
        {props.children}
      </button>
      {open.value && <Items label={props.label} actions={props.actions()} onClose={close} />}
    </div>
  );
}
