/** Numbers, times and names as a person reads them. */

export function bytes(count: number): string {
  if (!Number.isFinite(count) || count < 0) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function seconds(value: number): string {
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 86_400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86_400)} d ${Math.floor((value % 86_400) / 3600)} h`;
}

/** Takes Unix seconds or an ISO text, as the service's answers hold either. */
export function moment(value: number | string | null | undefined): Date | null {
  if (value === null || value === undefined || value === "") return null;
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  return Number.isNaN(date.getTime()) ? null : date;
}

/** When a file was written, in few letters: the time of today, or the date. */
export function shortTime(value: number | string | null | undefined, now = new Date()): string {
  const date = moment(value);
  if (!date) return "";
  if (date.toDateString() === now.toDateString())
    return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const year = date.getFullYear() === now.getFullYear() ? undefined : ("2-digit" as const);
  return date.toLocaleDateString(undefined, { year, month: "short", day: "numeric" });
}

export function ago(value: number | string | null | undefined, now = Date.now()): string {
  const date = moment(value);
  if (!date) return "";
  const past = Math.max(0, (now - date.getTime()) / 1000);
  if (past < 45) return "just now";
  if (past < 3600) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86_400) return `${Math.round(past / 3600)} h ago`;
  return date.toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

/** The pages call a computer what the service, for programs and operators, calls a sandbox. */
export function forPeople(text: string): string {
  return text.replace(/\bin the sandbox\b/g, "on the computer").replace(/\bsandbox\b/g, "computer");
}

/** Names from the sandbox hold any character: control and direction marks are shown, never obeyed. */
export function shownName(name: string): string {
  return name.replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the ones to show
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

const ESCAPES =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the sequences of a terminal begin with one
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[PX^_][^\u001b]*\u001b\\|[ -/]*[0-~])/g;

/** What a program printed, as text: sequences for a terminal are left out, other control characters are shown. */
export function plainText(text: string): string {
  return text
    .replace(ESCAPES, "")
    .replaceAll("\r\n", "\n")
    .split(/([\n\t])/)
    .map((part) => (part === "\n" || part === "\t" ? part : shownName(part)))
    .join("");
}
