/** Event streams that end with their page: for each that is still open then, Firefox writes an error to its console. */
const sources = new Set<EventSource>();

export function openEvents(url: string | URL): EventSource {
  for (const one of sources) if (one.readyState === EventSource.CLOSED) sources.delete(one);
  const source = new EventSource(url);
  sources.add(source);
  return source;
}

addEventListener("pagehide", () => {
  for (const source of sources) source.close();
});
// The back button may lead to the page as it was left: whoever had a stream hears that it ended.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const source of [...sources]) source.dispatchEvent(new Event("error"));
});
