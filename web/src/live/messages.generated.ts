// Generated from the Python models by scripts/web-types. Do not edit: change the models and run it again.

export type DialogKind = "alert" | "confirm" | "prompt" | "beforeunload";

export interface DialogMessage {
  type: "dialog";
  id: string;
  tab: string;
  kind: DialogKind;
  message: string;
  value: string;
}

export interface Rect {
  w: number;
  h: number;
  x: number;
  y: number;
}

export interface SelectOption {
  index: number;
  label: string;
  group: string;
  disabled: boolean;
  selected: boolean;
}

export interface SelectMessage {
  type: "select";
  id: string;
  tab: string;
  rect: Rect;
  multiple: boolean;
  options: SelectOption[];
}

export type PickerKind = "date" | "time" | "datetime-local" | "month" | "week" | "color";

export interface PickerMessage {
  type: "picker";
  id: string;
  tab: string;
  rect: Rect;
  kind: PickerKind;
  value: string;
  min: string;
  max: string;
  step: string;
}

export interface ChooserMessage {
  type: "chooser";
  id: string;
  tab: string;
  multiple: boolean;
  accept: string;
}

export type Popup = DialogMessage | SelectMessage | PickerMessage | ChooserMessage;

export interface Viewport {
  w: number;
  h: number;
}

export interface HelloMessage {
  type: "hello";
  version: number;
  viewer: string;
  viewport: Viewport;
}

export interface HeartbeatMessage {
  type: "heartbeat";
}

export type BrowserState = "running" | "crashed" | "closed";

export interface StateMessage {
  type: "state";
  browser: BrowserState;
  reason: string;
}

export interface TabRecord {
  id: string;
  title: string;
  url: string;
}

/** `active`: the tab that this viewer is shown; `followed`: the one that was used last, by the model or by whoever drives; `following`: this viewer is shown that one. `refusal`: why the egress proxy did not let the page that is shown through; empty when it did. */
export interface TabsMessage {
  type: "tabs";
  tabs: TabRecord[];
  active: string;
  followed: string;
  following: boolean;
  back: boolean;
  forward: boolean;
  loading: boolean;
  refusal: string;
}

/** A tab was used, so many seconds ago. */
export interface UsedMessage {
  type: "used";
  tab: string;
  how: "opened" | "navigated" | "input" | "front";
  seconds: number;
}

export interface WatcherRecord {
  viewer: string;
  name: string;
  view_only: boolean;
}

/** Who watches; `more` are not in the list. */
export interface WatchersMessage {
  type: "watchers";
  watchers: WatcherRecord[];
  more: number;
}

/** To whoever drives: another viewer asks for control. */
export interface AskedMessage {
  type: "asked";
  viewer: string;
  name: string;
}

/** The viewer that drives. */
export interface Holder {
  viewer: string;
  name: string;
}

/** `you`, `seconds` and `waiting` come with a holder only. `waiting`: input of the model is held meanwhile. */
export interface ControlMessage {
  type: "control";
  holder: Holder | null;
  you?: boolean;
  seconds?: number;
  waiting?: boolean;
}

export interface CursorMessage {
  type: "cursor";
  cursor: string;
}

/** What had this id is no longer open. */
export interface GoneMessage {
  type: "gone";
  id: string;
}

export interface CopiedMessage {
  type: "copied";
  text: string;
}

export interface DownloadMessage {
  type: "download";
  name: string;
  state: "started" | "finished" | "failed";
}

/** `message`: the type of the message that was refused. */
export interface RefusedMessage {
  type: "refused";
  message: string;
  reason:
    | "held"
    | "not-driving"
    | "view-only"
    | "no-tab"
    | "bad-message"
    | "declined"
    | "too-often"
    | "too-many";
}

export type FromService =
  | HelloMessage
  | HeartbeatMessage
  | StateMessage
  | TabsMessage
  | UsedMessage
  | WatchersMessage
  | AskedMessage
  | ControlMessage
  | CursorMessage
  | DialogMessage
  | SelectMessage
  | PickerMessage
  | ChooserMessage
  | GoneMessage
  | CopiedMessage
  | DownloadMessage
  | RefusedMessage;

export interface Ack {
  type: "ack";
  seq: number;
}

export interface View {
  type: "view";
  width: number;
  visible: boolean;
}

/** `tab`: the one to be shown to this viewer alone; empty: the one that everybody follows. */
export interface Look {
  type: "look";
  tab?: string;
}

export interface Name {
  type: "name";
  name: string;
}

/** `viewer`: to whom control is given, or whose question is declined. */
export interface Control {
  type: "control";
  action: "take" | "return" | "keep" | "ask" | "give" | "decline";
  name?: string;
  viewer?: string;
}

export type Button = "none" | "left" | "middle" | "right" | "back" | "forward";

export interface Mouse {
  type: "mouse";
  event: "move" | "down" | "up";
  x: number;
  y: number;
  button?: Button;
  buttons?: number;
  clicks?: number;
  modifiers?: number;
}

export interface Wheel {
  type: "wheel";
  x: number;
  y: number;
  dx: number;
  dy: number;
  modifiers?: number;
}

export interface Key {
  type: "key";
  event: "down" | "up";
  key: string;
  code: string;
  location?: number;
  modifiers?: number;
  repeat?: boolean;
}

export interface Text {
  type: "text";
  text: string;
}

export interface Composition {
  type: "composition";
  text: string;
  start?: number;
  end?: number;
}

export interface Paste {
  type: "paste";
  text: string;
}

export interface Copy {
  type: "copy";
  cut?: boolean;
}

export interface Nav {
  type: "nav";
  action: "go" | "back" | "forward" | "reload" | "stop";
  url?: string;
}

export interface TabAction {
  type: "tab";
  action: "open" | "close" | "activate";
  id?: string;
  url?: string;
}

export interface Dialog {
  type: "dialog";
  id: string;
  accept: boolean;
  text?: string;
}

export interface Select {
  type: "select";
  id: string;
  chosen: number[] | null;
}

export interface Picker {
  type: "picker";
  id: string;
  value: string | null;
}

export interface Files {
  type: "files";
  id: string;
  names: string[] | null;
}

export type FromViewer =
  | Ack
  | View
  | Look
  | Name
  | Control
  | Mouse
  | Wheel
  | Key
  | Text
  | Composition
  | Paste
  | Copy
  | Nav
  | TabAction
  | Dialog
  | Select
  | Picker
  | Files;
