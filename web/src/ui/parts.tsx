/** Small parts that every page uses. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { shownName } from "../common/format";
import type { LinkState } from "../common/link";
import type { Addresses } from "../common/page";
import { dark, nextTheme } from "../common/theme";
import { Icon, type IconName } from "./icon";

export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick: () => void;
  pressed?: boolean;
  disabled?: boolean;
  class?: string;
}) {
  return (
    <button
      type="button"
      class={`plain ${props.class ?? ""}`}
      title={props.label}
      aria-label={props.label}
      aria-pressed={props.pressed}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}

export function ThemeButton() {
  return (
    <IconButton
      icon={dark.value ? "sun" : "moon"}
      label={dark.value ? "Use light colours" : "Use dark colours"}
      onClick={nextTheme}
    />
  );
}

export function Empty(props: { icon: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={props.icon} />
      <h2>{props.title}</h2>
      {props.children}
    </div>
  );
}

/** A modal question. Escape, and a click outside, mean no. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      aria-label={props.title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === ref.current) props.onClose();
      }}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <form method="dialog" onSubmit={(event) => event.preventDefault()}>
        <h2>{props.title}</h2>
        {props.children}
      </form>
    </dialog>
  );
}

function useCountdown(until: number): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(timer);
  }, []);
  return Math.max(0, Math.ceil((until - now) / 1000));
}

function Waiting({
  state,
  onRetry,
}: {
  state: Extract<LinkState, { kind: "waiting" }>;
  onRetry: () => void;
}) {
  const left = useCountdown(state.until);
  return (
    <div class="notice warn">
      <span class="grow" role="status">
        {state.reason} Reconnecting{left > 0 ? ` in ${left} s` : "…"}
        {state.attempt > 1 && <span class="muted"> (attempt {state.attempt})</span>}
      </span>
      <button type="button" onClick={onRetry}>
        Reconnect now
      </button>
    </div>
  );
}

export const UNMADE = "This chat has no computer yet. The model's first call, or an upload, makes one.";

/** The computer is not up, why, and the button that changes that. */
export function AsleepNotice(props: {
  made: boolean;
  reason: string;
  /** The computer is up; what this panel shows of it is not. */
  off?: boolean | undefined;
  onStart: () => void;
  busy?: boolean;
}) {
  return (
    <div class="notice" role="status">
      <Icon name="moon" />
      <span class="grow">
        {props.made ? props.reason || "This computer sleeps; its files are kept." : UNMADE}
      </span>
      <button type="button" disabled={props.busy} onClick={props.onStart}>
        {props.busy
          ? "Starting…"
          : props.off
            ? "Start the browser"
            : props.made
              ? "Start again"
              : "Start one now"}
      </button>
    </div>
  );
}

/** What a person must know about a connection that is not simply open. */
export function LinkNotice(props: { state: LinkState; login: string; onRetry: (wake?: boolean) => void }) {
  const { state } = props;
  if (state.kind === "asleep") return <AsleepNotice {...state} onStart={() => props.onRetry(true)} />;
  if (state.kind === "waiting") return <Waiting state={state} onRetry={() => props.onRetry()} />;
  if (state.kind !== "closed") return null;
  return (
    <div class="notice bad" role="alert">
      <span class="grow">{state.reason}</span>
      {state.signIn ? (
        <a class="button" href={props.login}>
          Sign in
        </a>
      ) : (
        <button type="button" onClick={() => props.onRetry()}>
          Connect again
        </button>
      )}
    </div>
  );
}

/** Says what a link that only lets one look does not allow. */
export function ViewOnlyNotice({ addresses }: { addresses: Addresses }) {
  if (!addresses.viewOnly) return null;
  return (
    <div class="notice view-only" role="status">
      <Icon name="eye" />
      <span class="grow">
        <strong>View only.</strong>{" "}
        <span class="muted">
          Your link lets you look. You cannot type, click, upload, delete or undo with it.
        </span>
      </span>
    </div>
  );
}

/** On a page that shows one panel alone: whose it is, and the way to the rest. */
export function BackToChat({ addresses }: { addresses: Addresses }) {
  return (
    <a class="cut" href={addresses.preview("")} title="Open the workspace of this chat">
      {shownName(addresses.chat)}
    </a>
  );
}
