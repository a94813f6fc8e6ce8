/** The person's clipboard. Browsers keep the modern way for secure pages; a service on the local network often is none. */

/** Rejects when the browser refuses. */
export async function writeClipboard(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.style.position = "fixed";
  field.style.opacity = "0";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (before instanceof HTMLElement) before.focus({ preventScroll: true });
  if (!done) throw new Error("The browser refused to copy.");
}

/** Rejects when the browser refuses, as all do on a page that is not secure. */
export async function readClipboard(): Promise<string> {
  if (!navigator.clipboard?.readText)
    throw new Error("The browser does not let the page read the clipboard.");
  return navigator.clipboard.readText();
}
