/** What was typed and not saved, by path: a person who looks at another file finds it again. */
export const drafts = new Map<string, { text: string; etag: string }>();

const isIn = (path: string, place: string): boolean => path === place || path.startsWith(`${place}/`);

/** A file, or a folder and what is in it, has another name now: what was typed goes along. */
export function moveDrafts(from: string, to: string): void {
  for (const [path, draft] of [...drafts]) {
    if (!isIn(path, from)) continue;
    drafts.delete(path);
    drafts.set(to + path.slice(from.length), draft);
  }
}

/** It was deleted: nobody could find again what was typed there. */
export function dropDrafts(gone: string): void {
  for (const path of [...drafts.keys()]) if (isIn(path, gone)) drafts.delete(path);
}
