"""Windows virtual key codes, which Chromium wants beside the names of a key."""

from __future__ import annotations

_NAMED = {
    "Backspace": 8, "Tab": 9, "Enter": 13, "NumpadEnter": 13, "Pause": 19, "CapsLock": 20, "Escape": 27, "Space": 32,
    "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
    "ArrowDown": 40, "PrintScreen": 44, "Insert": 45, "Delete": 46, "MetaLeft": 91, "MetaRight": 92, "ContextMenu": 93,
    "NumpadMultiply": 106, "NumpadAdd": 107, "NumpadSubtract": 109, "NumpadDecimal": 110, "NumpadDivide": 111,
    "NumLock": 144, "ScrollLock": 145, "ShiftLeft": 16, "ShiftRight": 16, "ControlLeft": 17, "ControlRight": 17,
    "AltLeft": 18, "AltRight": 18, "Semicolon": 186, "Equal": 187, "Comma": 188, "Minus": 189, "Period": 190,
    "Slash": 191, "Backquote": 192, "BracketLeft": 219, "Backslash": 220, "BracketRight": 221, "Quote": 222,
    "IntlBackslash": 226,
}  # fmt: skip
_FAMILIES = {"Key": 0, "Digit": 0, "Numpad": 48}


def virtual_key(code: str, key: str) -> int:
    """The code of a key, by its place on the keyboard, else by what it means; 0 if neither is known.

    A letter goes by what it means: shortcuts follow the layout of the person, not the place of the key.
    """
    if len(key) == 1 and key.isascii() and key.isalnum():
        return ord(key.upper())
    if code in _NAMED:
        return _NAMED[code]
    if code.startswith("F") and code[1:].isdecimal() and 1 <= int(code[1:]) <= 24:
        return 111 + int(code[1:])
    for family, offset in _FAMILIES.items():
        last = code.removeprefix(family)
        if last != code and len(last) == 1 and last.isascii() and last.isalnum():
            return ord(last) + offset
    return _NAMED.get(key, 0)
