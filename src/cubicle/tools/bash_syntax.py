"""The name of the last command of a shell text: enough of the grammar of bash to find it, and honest about the rest.

`last_command` answers None whenever the exit status of the text is not plainly that of one simple command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_BLANKS = " \t\r"
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|&>>|&>|[;&|\n()]")
_REDIRECTION = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(?:<<<|<<-?|<>|<&|>>|>\||>&|[<>])")
_PREFIXES = frozenset({"command", "builtin", "exec", "time"})
_COMPOUND = frozenset(
    "if then else elif fi while until for select do done case esac function coproc".split()  # noqa: SIM905
)
_DEEPEST = 50
_MAX_TEXT = 16 * 1024
"""Longer texts are not judged: each character takes microseconds, and nothing else runs meanwhile."""


class _Unclear(Exception):
    """The text is not one that this scanner understands."""


@dataclass
class _Scanner:
    text: str
    at: int = 0
    depth: int = 0
    heredocs: list[tuple[str, bool]] = field(default_factory=list)

    def startswith(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in _BLANKS:
                self.at += 1
            elif self.startswith("\\\n"):
                self.at += 2
            else:
                return

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def word(self) -> str:
        """The word that starts here, with its quotes taken off; substitutions in it stay as one NUL each."""
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _BLANKS or char in "\n;&|()<>":
                if char in "<>" and self.text[self.at + 1 : self.at + 2] == "(":
                    self.at += 2
                    self.nested(")")
                    out.append("\0")
                    continue
                if char == "(" and out and out[-1] in "?*+@!":
                    raise _Unclear
                break
            out.append(self.piece(char))
        return "".join(out)

    def piece(self, char: str) -> str:
        """One element of a word, outside of quotes."""
        match char:
            case "\\":
                self.at += 2
                escaped = self.text[self.at - 1 : self.at]
                return "" if escaped == "\n" else escaped
            case "'":
                return self.until("'")
            case '"':
                return self.double_quoted()
            case "$" | "`":
                return self.dollar(char)
            case _:
                self.at += 1
                return char

    def until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise _Unclear
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return inner

    def double_quoted(self) -> str:
        self.at += 1
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(out)
            if char == "\\":
                out.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char in "$`":
                out.append(self.dollar(char))
            else:
                out.append(char)
                self.at += 1
        raise _Unclear

    def dollar(self, char: str) -> str:
        """An expansion: its value is not known here."""
        if char == "`":
            self.at += 1
            while self.at < len(self.text) and self.text[self.at] != "`":
                self.at += 2 if self.text[self.at] == "\\" else 1
            if self.at >= len(self.text):
                raise _Unclear
            self.at += 1
        elif self.startswith("$("):
            self.at += 2
            self.nested(")")
        elif self.startswith("${"):
            self.at += 2
            self.nested("}")
        elif self.startswith("$'"):
            self.at += 2
            while self.at < len(self.text) and self.text[self.at] != "'":
                self.at += 2 if self.text[self.at] == "\\" else 1
            self.at += 1
        else:
            self.at += 1
        return "\0"

    def nested(self, close: str) -> None:
        """Skip to the bracket that closes the one just opened, minding quotes and brackets inside."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _Unclear
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == close:
                self.at += 1
                self.depth -= 1
                return
            if char == "(":
                self.at += 1
                self.nested(")")
            else:
                self.piece(char)
        raise _Unclear

    def redirection(self) -> bool:
        """Skip a redirection and its target, if one starts here."""
        match = _REDIRECTION.match(self.text, self.at)
        if match is None or (match.group() in "<>" and self.text.startswith("(", match.end())):
            return False
        self.at = match.end()
        self.skip_blanks()
        target = self.word()
        operator = match.group().lstrip("0123456789")
        if operator in ("<<", "<<-"):
            self.heredocs.append((target, operator == "<<-"))
        return True

    def skip_heredocs(self) -> None:
        """Right after a newline: skip the bodies of the here-documents of the line."""
        for delimiter, tabs in self.heredocs:
            while True:
                if self.at >= len(self.text):
                    raise _Unclear
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
                if end == len(self.text):
                    raise _Unclear
        self.heredocs.clear()


def last_command(text: str) -> str | None:
    """The base name of the last command of the last pipeline of a shell text; None when that is not plain to see."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        return _last_command(_Scanner(text))
    except (_Unclear, RecursionError):
        return None


def _last_command(scanner: _Scanner) -> str | None:
    name: str | None = None
    negated = False
    while scanner.at < len(scanner.text):
        scanner.skip_blanks()
        if scanner.at >= len(scanner.text):
            break
        if scanner.text[scanner.at] == "#":
            scanner.skip_comment()
            continue
        if operator := _OPERATOR.match(scanner.text, scanner.at):
            scanner.at = operator.end()
            match operator.group():
                case "\n":
                    scanner.skip_heredocs()
                    negated = False
                case "&":
                    name, negated = None, False
                case "&&" | "||" | ";":
                    negated = False
                case "(" if not negated:
                    pass
                case ")" | "|" | "|&":
                    pass
                case _:
                    raise _Unclear
            continue
        words = _simple_command(scanner)
        if words == ["}"]:
            continue
        while words and words[0] in ("!", "{"):
            if negated:
                raise _Unclear
            negated = words.pop(0) == "!"
        if words:
            name = _name(words)
    return None if negated else name


def _simple_command(scanner: _Scanner) -> list[str]:
    """The words of the command that starts here, without its redirections."""
    words: list[str] = []
    conditional = False
    while scanner.at < len(scanner.text):
        scanner.skip_blanks()
        if scanner.at >= len(scanner.text):
            break
        if scanner.text[scanner.at] == "#":
            scanner.skip_comment()
            continue
        if scanner.startswith("&>"):
            scanner.at += 3 if scanner.startswith("&>>") else 2
            scanner.skip_blanks()
            scanner.word()
            continue
        if conditional and words[-1] != "]]":
            scanner.at += 1 if scanner.text[scanner.at] in "&|()<>\n;" else 0
        elif _OPERATOR.match(scanner.text, scanner.at):
            break
        elif scanner.redirection():
            continue
        before = scanner.at
        word = scanner.word()
        if scanner.at > before:
            words.append(word)
        elif not conditional:
            raise _Unclear
        conditional = conditional or words[:1] == ["[["] or (words[:2] == ["!", "[["])
    if conditional and words[-1] != "]]":
        raise _Unclear
    return words


def _name(words: list[str]) -> str | None:
    """The base name of the program that these words run; None when they run something else."""
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _PREFIXES):
        if rest.pop(0) in _PREFIXES and rest and rest[0].startswith("-"):
            return None
    if rest[:1] == ["env"]:
        rest.pop(0)
        while rest and _ASSIGNMENT.match(rest[0]):
            rest.pop(0)
    if not rest or rest[0] in _COMPOUND or "\0" in rest[0]:
        return None
    return rest[0].rsplit("/", 1)[-1]
