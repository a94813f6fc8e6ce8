"""What stands before a model's page whose scripts run: it takes WebRTC away, which no header of Chromium's can.

RTCPeerConnection sends to any address, and a Content-Security-Policy does not stop it. The guard takes it out of the
page, and takes out every frame, as each frame would bring a new one. A frame that a page writes as text or as a
`javascript:` address loads in a later task than the one that put it there; an observer runs at the end of that one.
It cannot look into a closed shadow tree that the parser made: the attribute that makes one is changed on the way, and
what would parse text into one is taken away.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator

_ATTRIBUTE = re.compile(rb"shadowrootmode", re.IGNORECASE)
_REPLACEMENT = b"shadowrootnone"
_KEPT = len(_REPLACEMENT) - 1

_SCRIPT = """(() => {
  "use strict";
  if (window.top === window) {
    window.stop();
    throw new Error("This page runs in a frame of the service only.");
  }
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"])
    Object.defineProperty(window, name, { value: undefined, configurable: false, writable: false });
  const own = (method) => Function.prototype.call.bind(method);
  const length = own(Object.getOwnPropertyDescriptor(NodeList.prototype, "length").get);
  const item = own(NodeList.prototype.item);
  const remove = own(Element.prototype.remove);
  const inDocument = own(Document.prototype.querySelectorAll);
  const inFragment = own(DocumentFragment.prototype.querySelectorAll);
  const observe = own(MutationObserver.prototype.observe);
  const attach = own(Element.prototype.attachShadow);
  const Observer = MutationObserver;
  const FRAMES = "iframe, frame, object, embed, fencedframe, portal";
  const watch = (root, all) => {
    const sweep = () => {
      const found = all(root, FRAMES);
      for (let i = length(found) - 1; i >= 0; i -= 1) remove(item(found, i));
    };
    observe(new Observer(sweep), root, { childList: true, subtree: true });
  };
  const fix = (place, name, value) =>
    Object.defineProperty(place, name, { value, configurable: false, writable: false });
  watch(document, inDocument);
  fix(Element.prototype, "attachShadow", function attachShadow(options) {
    // Not clonable: a clone's root would be one that nobody watches.
    const root = attach(this, { ...options, clonable: false });
    watch(root, inFragment);
    return root;
  });
  for (const made of [Element, Document, ShadowRoot, DocumentFragment, Range])
    for (const place of [made, made.prototype])
      for (const name of Object.getOwnPropertyNames(place))
        if (/unsafe$/i.test(name)) fix(place, name, undefined);
  for (const name of ["write", "writeln"]) {
    fix(Document.prototype, name, () => console.warn(`document.${name} is not available in a page of a chat.`));
    fix(document, name, Document.prototype[name]);
  }
})();"""

GUARD = f"<!doctype html><script>{_SCRIPT}</script>".encode()


async def guarded(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The page behind the guard."""
    yield GUARD
    rest = b""
    async for chunk in chunks:
        ready = _ATTRIBUTE.sub(_REPLACEMENT, rest + chunk)
        cut = max(0, len(ready) - _KEPT)
        rest = ready[cut:]
        if cut:
            yield ready[:cut]
    if rest:
        yield rest
