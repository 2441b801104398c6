"""HCL, in which Terraform and Nomad describe containers: blocks as mappings, as YAML would have them.

Variables and locals of the same file are replaced by their values; every other expression becomes a
variable of a shell, whose value is not known.
"""

from __future__ import annotations

import json
import re
from textwrap import dedent
from typing import Any

from .findings import Word

MAX_TOKENS = 100_000
MAX_DEPTH = 60
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\#[^\n]*|//[^\n]*|/\*.*?\*/)|(?P<line>\n)"""
    r"""|<<(?P<indented>-?)(?P<end>\w+)[ \t\r]*\n(?P<heredoc>.*?)\n[ \t]*(?P=end)\b"""
    r"""|"(?P<string>(?:[^"\\$%\n]|\\.|[$%]\{(?:[^{}"\n]|"[^"\n]*"|\{[^{}\n]*\})*\}|[$%])*)\""""
    r"""|(?P<name>[A-Za-z_][\w-]*(?:\.[\w*-]+|\[[^\]\[\n]*\])*)|(?P<number>\d[\w.]*)"""
    r"""|(?P<sign>==|!=|<=|>=|=>|&&|\|\||\.\.\.|[{}()\[\],:=?])|(?P<other>.)""",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\$\{(var|local)\.(\w+)((?:\[\*\])?)\}")
_EXPRESSION = re.compile(r"\$\{(?!\w+(?:\[\*\])?\})((?:[^{}]|\{[^{}]*\})*)\}")
_BARE = re.compile(r"true|false|null|-?\d{1,18}(?:\.\d{1,18})?")
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_WRAPPERS = ("jsonencode", "yamlencode", "tolist", "flatten", "compact", "base64encode", "tostring")
_UNKNOWN = "$VALUE"
_MORE = "$MORE_ARGS"
"""A list that is not known, as a word: it may have more options."""


def parse_hcl(text: str) -> dict[str, Any]:
    """Return the blocks and attributes of a file; what cannot be read is left out."""
    parser = _Parser(text)
    document = parser.body()
    known = parser.defaults | {
        f"local.{name}": value
        for block in _listed(document.get("locals"))
        if isinstance(block, dict)
        for name, value in block.items()
    }
    resolved: dict[str, Any] = _resolved(_resolved(document, known), known)
    return resolved


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _Parser:
    """``defaults``: of the variables, by ``var.NAME``."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        self._at = self._depth = 0
        self.defaults: dict[str, Any] = {}
        line = 1
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind != "blank" and len(self._tokens) < MAX_TOKENS:
                content = match[kind]
                self._tokens.append((kind, dedent(content) if match["indented"] else content, line))
            line += match[0].count("\n")

    def _next(self, *, lines: bool = True) -> tuple[str, str, int]:
        """Return the next token without taking it. ``lines``: leave out ends of lines."""
        while lines and self._at < len(self._tokens) and self._tokens[self._at][0] == "line":
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "", 0)

    def body(self) -> dict[str, Any]:
        """Return the attributes and blocks up to a closing brace. A block that is repeated becomes a
        list."""
        found: dict[str, Any] = {}
        while (token := self._next())[0] and token[1:2] != ("}",):
            self._at += 1
            if token[0] not in ("name", "string"):
                continue
            labels = []
            while (label := self._next(lines=False))[0] in ("name", "string"):
                labels.append(label[1])
                self._at += 1
            sign = label[1]
            if sign in ("=", ":") and not labels:
                self._at += 1
                found[token[1]] = self._value()
            elif sign == "{" and self._depth < MAX_DEPTH:
                self._add(found, token[1], labels, self._inner())
            if self._next()[1] == "," and self._next()[0] == "sign":
                self._at += 1
        return found

    def _inner(self) -> dict[str, Any]:
        self._at += 1
        self._depth += 1
        block = self.body()
        self._depth -= 1
        self._at += 1
        return block

    def _add(
        self, found: dict[str, Any], name: str, labels: list[str], block: dict[str, Any]
    ) -> None:
        if name == "variable" and labels and "default" in block:
            self.defaults[f"var.{labels[0]}"] = block["default"]
        is_pair = {"name", "value"} <= block.keys()  # such as an environment variable
        if name in found:
            found[name] = [*_listed(found[name]), block]
        else:
            found[name] = [block] if is_pair else block

    def _value(self) -> Any:
        kind, text, line = self._next()
        self._at += 1
        value: Any = Word(_UNKNOWN, line)
        if kind in ("string", "heredoc"):
            value = Word(re.sub(r'\\(["\\])', r"\1", text), line, True)
        elif kind == "number":
            value = Word(text, line)
        elif text == "[" and kind == "sign":
            value = self._items("]")
        elif text == "{" and self._depth < MAX_DEPTH:
            self._at -= 1
            value = self._inner()
        elif kind == "name":
            value = self._named(text, line)
        if self._goes_on():
            self._skip()
            return Word(_UNKNOWN, line)
        return value

    def _named(self, name: str, line: int) -> Any:
        if self._next(lines=False)[1:2] != ("(",):
            return Word(name if name in ("true", "false", "null") else f"${{{name}}}", line)
        self._at += 1
        arguments = self._items(")")
        if name in _WRAPPERS and arguments:
            return arguments[0]
        if name == "concat":
            return [item for part in arguments for item in _part_of_list(part)]
        if name == "join" and len(arguments) == 2 and isinstance(arguments[1], list):
            return Word(str(arguments[0]).join(map(str, arguments[1])), line)
        return Word(_UNKNOWN, line)

    def _items(self, end: str) -> list[Any]:
        items: list[Any] = []
        self._depth += 1
        while (token := self._next())[0] and token[1] != end and self._depth < MAX_DEPTH:
            if token[1] == "for":  # items are computed
                self._skip()
                items.append(Word(_MORE, token[2]))
            elif token[1] in (",", "..."):
                self._at += 1
            else:
                encodes = token[:2] == ("name", "jsonencode") and end == "]"
                value = self._value()
                items.append(_as_json(value, token[2]) if encodes else value)
        self._depth -= 1
        self._at += 1
        return items

    def _goes_on(self) -> bool:
        """Return whether an operator follows, so that the value is computed."""
        kind, text, _ = self._next(lines=False)
        return kind == "other" or text in ("?", "==", "!=", "<=", ">=", "&&", "||", "[")

    def _skip(self) -> None:
        """Skip the rest of an expression, as far as a comma, a closing bracket or the line's end."""
        waiting: list[str] = []
        while (token := self._next(lines=bool(waiting)))[0]:
            kind, text, _ = token
            is_sign = kind == "sign"
            if not waiting and (kind == "line" or (is_sign and text in (",", ")", "]", "}"))):
                return
            if is_sign and text in _CLOSES:
                waiting.append(_CLOSES[text])
            elif is_sign and waiting and text == waiting[-1]:
                waiting.pop()
            self._at += 1


def _as_json(value: Any, line: int) -> Any:
    """Return the text of an object that is an item of a list, such as the value of an option."""
    if not isinstance(value, dict):
        return value
    return Word(json.dumps(_plain(value), default=str, separators=(",", ":")), line, True)


def _plain(value: Any) -> Any:
    """Return a value with numbers and truth values instead of their words."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    is_bare = isinstance(value, Word) and not value.quoted
    return json.loads(value) if is_bare and _BARE.fullmatch(value) else value


def _part_of_list(part: Any) -> list[Any]:
    """Return the items of an argument of ``concat``."""
    if isinstance(part, list):
        return part
    if isinstance(part, Word) and _REFERENCE.fullmatch(part):
        return [Word(f"{part[:-1]}[*]}}", part.line)]
    return [Word(_MORE, getattr(part, "line", 1))]


def _resolved(value: Any, known: dict[str, Any]) -> Any:
    """Return a value with its references replaced."""
    if isinstance(value, dict):
        return {name: _resolved(part, known) for name, part in value.items()}
    if isinstance(value, list):
        return [
            item
            for part in value
            for new in [_resolved(part, known)]
            for item in (new if isinstance(new, list) and isinstance(part, Word) else [new])
        ]
    if not isinstance(value, Word) or "${" not in value:
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and isinstance(known.get(f"{whole[1]}.{whole[2]}"), (list, dict)):
        return known[f"{whole[1]}.{whole[2]}"]
    text = _REFERENCE.sub(lambda match: _text(match, known), value)
    text = _EXPRESSION.sub(_UNKNOWN, text)
    return Word(text, value.line, value.quoted)


def _text(match: re.Match[str], known: dict[str, Any]) -> str:
    value = known.get(f"{match[1]}.{match[2]}")
    return str(value) if isinstance(value, Word) else f"${{{match[2]}{match[3]}}}"
