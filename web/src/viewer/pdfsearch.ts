/** Search in a PDF: which pages hold a text, and where in the pieces that the page's text is made of. */

export interface Match {
  page: number;
  /** Its place among the matches of the page. */
  nth: number;
}

/** Where a text begins in another, one after the other. */
export function places(text: string, sought: string): number[] {
  const found: number[] = [];
  if (!sought) return found;
  for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + sought.length)) found.push(at);
  return found;
}

export interface Span {
  /** Index of the piece. */
  piece: number;
  from: number;
  to: number;
  nth: number;
}

/** The parts of the pieces that the matches cover. Pieces are compared letter by letter, without case. */
export function spans(pieces: readonly string[], sought: string): Span[] {
  const wanted = sought.toLowerCase();
  const all = pieces.map((piece) => {
    const low = piece.toLowerCase();
    return low.length === piece.length ? low : piece;
  });
  const found: Span[] = [];
  let piece = 0;
  let start = 0;
  places(all.join(""), wanted).forEach((at, nth) => {
    while (start + (all[piece]?.length ?? 0) <= at && piece < all.length - 1) {
      start += all[piece]?.length ?? 0;
      piece += 1;
    }
    let [i, begin] = [piece, start];
    const end = at + wanted.length;
    while (i < all.length && begin < end) {
      const length = all[i]?.length ?? 0;
      const [from, to] = [Math.max(0, at - begin), Math.min(length, end - begin)];
      if (to > from) found.push({ piece: i, from, to, nth });
      begin += length;
      i += 1;
    }
  });
  return found;
}
