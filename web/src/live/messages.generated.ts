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

/** `refusal`: why the egress proxy did not let the page that is shown through; empty when it did. */
export interface TabsMessage {
  type: "tabs";
  tabs: TabRecord[];
  active: string;
  back: boolean;
  forward: boolean;
  loading: boolean;
  refusal: string;
}

/** The viewer that drives. */
export interface Holder {
  viewer: string;
  name: string;
}

/** `you` and `seconds` come with a holder only. */
export interface ControlMessage {
  type: "control";
  holder: Holder | null;
  you?: boolean;
  seconds?: number;
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
  reason: "held" | "not-driving" | "view-only" | "no-tab" | "bad-message";
}

export type FromService =
  | HelloMessage
  | HeartbeatMessage
  | StateMessage
  | TabsMessage
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

export interface Control {
  type: "control";
  action: "take" | "return" | "keep";
  name?: string;
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
