"""Functions that are run in a page, for what Chromium shows outside its frames: lists, pickers, selection, cursor."""

from __future__ import annotations

USED_BINDING = "cubicleUsed"
TELL_USE = """(() => {
  let told = 0;
  let later = 0;
  const tell = () => {
    told = Date.now();
    later = 0;
    if (typeof cubicleUsed === 'function') cubicleUsed('');
  };
  const use = (event) => {
    if (!event.isTrusted || later) return;
    const past = Date.now() - told;
    if (past < 0 || past >= 100) tell();
    else later = setTimeout(tell, 100 - past);
  };
  for (const type of ['pointerdown', 'keydown', 'wheel', 'input', 'drop'])
    window.addEventListener(type, use, {capture: true, passive: true});
})()"""
"""Tells of input, from a world of our own in each page: what the page's scripts can neither see nor call."""

POPUP_OF = """function () {
  let node = this.nodeType === 1 ? this : this.parentElement;
  node = node && (node.closest('select') || node.closest('input'));
  if (!node || node.disabled) return null;
  const box = node.getBoundingClientRect();
  const rect = {x: box.x, y: box.y, w: box.width, h: box.height};
  if (node.localName === 'select') {
    if (node.size > 1 || (node.multiple && node.size !== 1)) return null;
    const options = Array.prototype.slice.call(node.options, 0, 1000).map((option, index) => ({
      index, label: String(option.label).slice(0, 1000), disabled: option.disabled,
      group: option.parentElement && option.parentElement.localName === 'optgroup' ? option.parentElement.label : '',
      selected: option.selected,
    }));
    return {popup: 'select', multiple: node.multiple, options, rect};
  }
  if (!['date', 'time', 'datetime-local', 'month', 'week', 'color'].includes(node.type) || node.readOnly) return null;
  return {popup: 'picker', kind: node.type, value: node.value, min: node.min, max: node.max, step: node.step, rect};
}"""

FOCUS = """function () {
  const node = (this.nodeType === 1 ? this : this.parentElement);
  const field = node.closest('select') || node.closest('input');
  if (field) field.focus();
}"""

CHOOSE = """function (chosen) {
  const node = this.closest('select');
  if (!node) return;
  Array.prototype.forEach.call(node.options, (option, index) => { option.selected = chosen.includes(index); });
  node.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  node.dispatchEvent(new Event('change', {bubbles: true}));
}"""

PICK = """function (value) {
  const node = this.closest('input');
  if (!node) return;
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(node, value);
  node.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  node.dispatchEvent(new Event('change', {bubbles: true}));
}"""

SELECTION = """(function (cut) {
  let page = document;
  let field = page.activeElement;
  while (field && field.localName === 'iframe' && field.contentDocument) {
    page = field.contentDocument;
    field = page.activeElement;
  }
  while (field && field.shadowRoot && field.shadowRoot.activeElement) field = field.shadowRoot.activeElement;
  let text = '';
  if (field && typeof field.value === 'string' && typeof field.selectionStart === 'number' && field.type !== 'password')
    text = field.value.slice(field.selectionStart, field.selectionEnd);
  else
    text = String(page.getSelection());
  if (cut && text) page.execCommand('delete');
  return text.slice(0, 1048576);
})"""

CURSOR = """(function (x, y) {
  let root = document;
  let node = null;
  for (let depth = 0; depth < 20; depth += 1) {
    const found = root.elementFromPoint(x, y);
    if (!found || found === node) break;
    node = found;
    if (node.shadowRoot) {
      root = node.shadowRoot;
    } else if (node.localName === 'iframe' && node.contentDocument) {
      const box = node.getBoundingClientRect();
      x -= box.x + node.clientLeft;
      y -= box.y + node.clientTop;
      root = node.contentDocument;
    } else break;
  }
  if (!node) return 'default';
  const page = node.ownerDocument;
  const style = page.defaultView.getComputedStyle(node);
  if (style.cursor !== 'auto') return style.cursor;
  if (node.isContentEditable) return 'text';
  const caret = style.userSelect === 'none' ? null : page.caretRangeFromPoint(x, y);
  if (!caret || caret.startContainer.nodeType !== 3 || !node.contains(caret.startContainer)) return 'default';
  const range = page.createRange();
  range.selectNodeContents(caret.startContainer);
  const inside = (box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  return Array.from(range.getClientRects()).some(inside) ? 'text' : 'default';
})"""
