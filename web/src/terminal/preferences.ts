import { signal } from "@preact/signals";
import { isBoolean, isNumber, stored } from "../common/stored";

const SMALLEST = 8;
const LARGEST = 32;

export const fontSize = stored("terminal.font", 14, isNumber);
export const screenReader = stored("terminal.reader", false, isBoolean);
export const askBeforePaste = stored("terminal.ask", true, isBoolean);
/** Not kept: a terminal that takes no keys after a reload looks broken. */
export const readOnly = signal(false);

export function changeFont(by: number): void {
  fontSize.value = Math.min(LARGEST, Math.max(SMALLEST, fontSize.value + by));
}
