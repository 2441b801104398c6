"""Words of a shell: splitting a text into them, and replacing the variables whose value is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile

from .findings import Word

MAX_COMMAND = 64 * 1024
"""Characters to which a word may grow when variables are replaced: each may hold two others."""
REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-[^{}]*)?\}|\((\w+)\))")
_ARRAY = re.compile(
    r"\$\{(\w+)\[[@*]\](?:[:+-][^{}]*)?\}|\$\{\w+\[[@*]\]\+\"?\$\{(\w+)\[[@*]\]\}\"?\}"
)
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::(\d{1,3}))?\})")
_PRINTED = r"`(?![^`\n]*(?:vllm|docker))(\w[^`\n]*)`"
"""A command whose output is used. One that may start a server is rather an example in a text."""
_PART = re.compile(
    rf"""(?P<printed>{_PRINTED})"""
    rf"""|(?P<blank>(?:`\#[^`\n]*`|(?!{_PRINTED})`|[ \t\r]|\\[ \t\r]*\n|\\[ \t])+)"""  # `\ ` is what YAML makes of `\` in a folded scalar
    r"""|(?P<redirection>(?<!\S)(?:\d?>>?|<<?<?-?|&>)(?:&\d|&?[ \t]*[^\s;|&]+))"""
    r"""|(?P<end>\n|&&|\|\|?|;;?|&|[()])"""
    r"""|(?P<comment>(?<!\S)\#[^\n]*)"""
    r"""|(?P<plain>(?:\{\{[^{}]*\}\}|\$\((?:[^()\n]|\([^()\n]*\))*\)|\$\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)?\}|[^\s\\'"|&;()`{$]+|[{$]|(?<=[a-z])'(?=[a-z]))+)"""
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\$]|\\.|\$\((?:[^()]|\([^()]*\))*\)|\$)*)"|\\(?P<escaped>.)|(?P<other>.)""",
    re.DOTALL,
)
_BLOCK = re.compile(
    r"\{%-?\s*(?:if|for)\b(?:(?!\{%-?\s*(?:if|for|endif|endfor)\b).)*?\{%-?\s*(?:endif|endfor)\s*-?%\}(?:(?<=%\})[ \t]*\n)?",
    re.DOTALL,
)
"""A conditional block of a template that contains no other block."""
_TAG = re.compile(r"\{%[^{}]*%\}")
_COMMENT = re.compile(r"(?<!\$)\{#(?:[^#]|#(?!\}))*#\}")
_COMMAND = re.compile(
    r"\bvllm serve\b|\bapi_server\b|\b(?:docker|podman) run\b|(?m:^ExecStart *=|^command *=)"
)
MAX_BLOCKS = 200
_ESCAPED = re.compile(r'\\(?:\n|(["\\]))')
END = ";"
MAX_FUNCTIONS = 500
"""Most functions of a script that are found."""
_BEFORE_COMMAND = ("{", "}", "then", "else", "do", "!")
ALL_ARGUMENTS = ("$@", "$*", "${@}")

Known = dict[str, "Word | list[Word] | None"]
"""Variables by name: a list for an array, None if the value is not known."""


def split(text: str, line: int = 1, *, newlines_end: bool = True) -> list[Word]:
    """Return the words of a text as a shell splits it, without redirections and comments.

    The ends of commands are words, too. Quotes that do not match are left out. ``newlines_end``:
    whether a line's end is one of them.
    """
    words: list[Word] = []
    parts: list[str] = []
    start, quoted = line, False
    for match in chain(_PART.finditer(text), [None]):
        kind = match.lastgroup if match else "end"
        if kind not in ("blank", "redirection", "end", "comment"):
            assert match is not None and kind is not None
            start = start if parts else line
            quoted = quoted or kind in ("single", "double")
            part = match[kind]
            part = _ESCAPED.sub(r"\1", part) if kind == "double" else part
            parts.append(
                re.sub(_PRINTED, r"$(\1)", part) if kind in ("double", "printed") else part
            )
        elif parts:
            if quoted or any(part not in "'\"" for part in parts):
                words.append(Word("".join(parts), start, quoted))
            parts, quoted = [], False
        if match:
            line += match[0].count("\n")
            if kind == "end" and (newlines_end or match[0] != "\n"):
                words.append(Word(END, line, sign=match[0]))
    return words


def commands(words: Iterable[Word]) -> Iterator[list[Word]]:
    """Yield the words of each command."""
    yield from (command for _, command, _ in signed_commands(words))


def signed_commands(words: Iterable[Word]) -> Iterator[tuple[str, list[Word], str]]:
    """Yield the sign before each command, its words, and the sign after it."""
    command: list[Word] = []
    before = "\n"
    for word in words:
        if not word.sign:
            command.append(word)
        elif command:
            yield before, command, word.sign
            command, before = [], word.sign
        elif word.sign != "\n" and before not in ("&&", "||"):  # a line may end after a sign
            before = word.sign
    if command:
        yield before, command, ""


def with_arrays(words: Sequence[Word]) -> Iterator[tuple[Word, list[Word] | None]]:
    """Yield the words, and for each that assigns an array its items."""
    at = 0
    while at < len(words):
        word = words[at]
        opens = words[at + 1].sign == "(" if at + 1 < len(words) else False
        if opens and not word.quoted and re.fullmatch(r"\w+\+?=", word):
            inner = (words[number] for number in range(at + 2, len(words)))
            items = list(takewhile(lambda item: item.sign != ")", inner))
            yield word, [item for item in items if not item.sign]
            at += len(items) + 3
        else:
            yield word, None
            at += 1


def without_functions(words: Sequence[Word]) -> tuple[list[Word], dict[str, list[Word]]]:
    """Return the words of a script without its functions, and the bodies of these."""
    main: list[Word] = []
    functions: dict[str, list[Word]] = {}
    at, is_open = 0, False  # without a closing brace for one, none after it is looked for
    while at < len(words):
        start = 0 if is_open or len(functions) == MAX_FUNCTIONS else _start_of_body(words, at)
        end = _end_of_body(words, start) if start else 0
        is_open = is_open or (bool(start) and not end)
        if end:
            name = words[at + 1] if words[at] == "function" else words[at]
            functions[str(name)] = list(words[start:end])
            at = end + 1
        else:
            main.append(words[at])
            at += 1
    return main, functions


def _start_of_body(words: Sequence[Word], at: int) -> int:
    """Return the index at which the body of a function begins that is defined here; 0 if none is."""
    if at and not words[at - 1].sign:
        return 0
    is_named = words[at] == "function" and at + 1 < len(words)
    at += is_named
    signs = [word.sign for word in words[at + 1 : at + 3]]
    if words[at].sign or not (is_named or signs == ["(", ")"]):
        return 0
    at += 3 if signs == ["(", ")"] else 1
    while at < len(words) and words[at].sign == "\n":
        at += 1
    return at + 1 if at < len(words) and words[at] == "{" else 0


def _end_of_body(words: Sequence[Word], start: int) -> int:
    """Return the index of the brace that closes a body; 0 if there is none."""
    depth = 1
    for at in range(start, len(words)):
        if words[at - 1].sign or words[at - 1] in _BEFORE_COMMAND:
            depth += (words[at] == "{") - (words[at] == "}")
            if not depth:
                return at
    return 0


def without_blocks(text: str) -> str:
    """Return a text with a variable for each block of a template: what is in it may be left out. A
    block with whole commands is kept, as if it were rendered once."""
    text = without_comments(text)
    for _ in range(MAX_BLOCKS if "{%" in text else 0):
        text, count = _BLOCK.subn(_for_block, text)
        if not count:
            break
    return text


def without_comments(text: str) -> str:
    """Return a template without its comments, with as many lines."""
    if "#}" not in text or text.count("{#") > MAX_BLOCKS:
        return text
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)


def _for_block(match: re.Match[str]) -> str:
    if _COMMAND.search(match[0]):
        return _TAG.sub(lambda tag: "\n" * tag[0].count("\n"), match[0])
    # A command that went on before the block does so after it.
    goes_on = match.string[: match.start()].rstrip().endswith("\\")
    return " $TEMPLATE_ARGS " + ("\\\n" if goes_on else "\n") * match[0].count("\n")


def expanded(word: Word, known: Mapping[str, Word | list[Word] | None]) -> list[Word]:
    """Replace the known variables in a word. An array, or a value without quotes, may give several
    words."""
    if "$" not in word:
        return [word]
    if arguments := _ARGUMENTS.fullmatch(word):
        items = known.get("@")
        return items[int(arguments[1] or 1) - 1 :] if isinstance(items, list) else [word]
    if array := _ARRAY.fullmatch(word):
        items = known.get(array[1] or array[2])
        return items if isinstance(items, list) else [Word(word, word.line)]
    whole = REFERENCE.fullmatch(word)
    value = known.get(next(filter(None, whole.groups()))) if whole else None
    if isinstance(value, Word) and not word.quoted:
        return split(value, value.line)
    text = REFERENCE.sub(lambda match: value_of(match, known), word)
    return [Word(text, word.line, word.quoted) if len(text) <= MAX_COMMAND else word]


def value_of(match: re.Match[str], known: Mapping[str, Word | list[Word] | None]) -> str:
    value = known.get(next(filter(None, match.groups())))
    if value == "" and ":-" in match[0]:
        return match[0].partition(":-")[2][:-1]
    return value if isinstance(value, str) else match[0]
