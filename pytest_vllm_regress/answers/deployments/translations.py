"""Translate Makefiles, PowerShell, batch files, Nix and lists of words in other languages to equivalent shell scripts, line by line.

Only what matters for the command of a server is translated: variables, lists, conditions, and lines
that go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_DEPTH = 8
"""Variables of a makefile in the values of others."""
MAX_LENGTH = 64 * 1024


def to_shell(text: str, name: str) -> str:
    """Return a script for a file; its own text if it is a script already."""
    last = name.rpartition("/")[2]
    if last in ("Makefile", "makefile", "GNUmakefile") or last.endswith((".mk", ".make")):
        return _of_makefile(text)
    if last.lower() in ("justfile", ".justfile") or last.endswith(".just"):
        return _of_justfile(text)
    for ending, translate in _TRANSLATIONS.items():
        if last.endswith(ending):
            return translate(text)
    return text


def _lines_of(text: str) -> str:
    return "\n" * text.count("\n")


# Makefiles

_MAKE_LINE = re.compile(r"(?:[^\\\n]|\\.|\\\n)*(?:\n|\Z)")
_MAKE_ASSIGNMENT = re.compile(
    r" *(?:(?:export|override)[ \t]+)?([\w.-]+)[ \t]*(\?|:{1,3}|\+)?=[ \t]*(.*)\s*", re.DOTALL
)
_MAKE_REFERENCE = re.compile(r"\$\((\w+)\)|\$\{(\w+)\}")


def _of_makefile(text: str) -> str:
    """Return the recipes, with the variables replaced that have one value."""
    values: dict[str, str] = {}
    conditional: set[str] = set()
    out: list[str] = []
    depth = 0
    for line in _MAKE_LINE.findall(text):
        if line.startswith("\t"):
            out.append(re.sub(r"\A\t\s*[@+-]*", "", line))
            continue
        out.append(_lines_of(line))
        depth += bool(re.match(r" *if(?:eq|neq|def|ndef)\b", line))
        depth -= bool(re.match(r" *endif\b", line))
        if assigned := _MAKE_ASSIGNMENT.fullmatch(line):
            name, sign = assigned[1], assigned[2]
            value = re.sub(r"\s*\\\n\s*", " ", re.sub(r"(?:\A|\s)#.*", "", assigned[3])).strip()
            if sign == "+":
                value = f"{values.get(name, '')} {value}".strip()
            elif sign == "?" and name in values:
                continue
            if depth and values.get(name, value) != value:
                conditional.add(name)
            values[name] = value
    for name in conditional:
        del values[name]
    return re.sub(r"\$\$", "$", _replaced("".join(out), values)).replace("$(shell ", "$(")


def _replaced(text: str, values: dict[str, str], depth: int = 0) -> str:
    """Return a text with the variables of a makefile replaced, as make does: by their text."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values or depth == MAX_DEPTH:
            return f"${{{name}}}"
        return _replaced(values[name], values, depth + 1)[:MAX_LENGTH]

    return _MAKE_REFERENCE.sub(value, text)


def _of_justfile(text: str) -> str:
    text = re.sub(
        r"(?m)^(?:export[ \t]+)?(\w+)[ \t]*:=[ \t]*(\"[^\"\n]*\"|'[^'\n]*')", r"\1=\2", text
    )
    text = re.sub(r"\{\{[ \t]*(\w+)[ \t]*\}\}", r"${\1}", text)
    return re.sub(r"(?m)^([ \t]+)[@-]+", r"\1", text)


# PowerShell

_PS_COMMENT = re.compile(r"<#.*?#>", re.DOTALL)
_PS_VALUE = r"\"(?:[^\"`]|`.)*\"|'[^']*'|[\w.:/-]+"
_PS_ASSIGNED = r"(?m)^[ \t]*(?:\[[\w.\[\]]+\][ \t]*)*\$(?:script:|global:)?(\w+)[ \t]*(\+?)=[ \t]*"
_PS_ARRAY = re.compile(rf"{_PS_ASSIGNED}@\((?P<items>(?:{_PS_VALUE}|\$\([^()]*\)|[^()\"'])*)\)")
_PS_ADDED = re.compile(rf"{_PS_ASSIGNED}(?P<items>[\"'$@][^\n]*)")
_PS_SCALAR = re.compile(rf"{_PS_ASSIGNED}({_PS_VALUE}|\$\w+),?[ \t]*(?:#.*)?$")
_PS_OTHER = re.compile(rf"{_PS_ASSIGNED}(?=[^\n])")
_PS_ENVIRONMENT = re.compile(rf"(?m)^[ \t]*\$env:(\w+)[ \t]*=[ \t]*({_PS_VALUE})")
_PS_TOKEN = re.compile(rf"(?:{_PS_VALUE}|\$\([^()]*\)|[^\s,])+|\n")
_PS_BLOCK = re.compile(
    r"(?m)^(?P<closes>[ \t]*\}[ \t]*)?(?P<word>\b(?:if|elseif|else)\b)?[^\n{}\"']*(?P<opens>\{)?[ \t]*$"
)


def _of_powershell(text: str) -> str:
    text = _PS_COMMENT.sub(lambda match: _lines_of(match[0]), text)
    text = re.sub(r"(?m)`[ \t\r]*$", r"\\", text)
    arrays = {match[1] for match in _PS_ARRAY.finditer(text)}
    text = _PS_ENVIRONMENT.sub(r"export \1=\2", text)
    text = _PS_ARRAY.sub(_as_array, text)
    text = _PS_ADDED.sub(lambda m: _as_array(m) if m[1] in arrays and m[2] else m[0], text)
    text = _PS_SCALAR.sub(r"\1\2=\3", text)
    text = _PS_OTHER.sub(r"\1\2=$(command) # ", text)
    text = re.sub(r"\$env:(\w+)", r"${\1}", text)
    if arrays:
        names = "|".join(map(re.escape, arrays))
        text = re.sub(rf"(?<![\w\"])[$@]({names})\b(?!\[)", r'"${\1[@]}"', text)
    text = re.sub(r"(?m)^([ \t]*)(?:&|iex|Invoke-Expression)[ \t]+", r"\1", text)
    return _with_branches(text)


def _as_array(match: re.Match[str]) -> str:
    items = " ".join(_PS_TOKEN.findall(match["items"].replace("@(", "").rstrip(") ")))
    return f"{match[1]}{match[2]}=( {items} )"


def _with_branches(text: str) -> str:
    """Return a script in which ``if (...) {`` and ``}`` are those of a shell."""
    opened: list[bool] = []
    lines = []
    for line in text.split("\n"):
        match = _PS_BLOCK.match(line) if line.rstrip().endswith(("{", "}")) else None
        if match is None:
            lines.append(line)
            continue
        was_if = bool(match["closes"]) and bool(opened) and opened.pop()
        words = {"if": "if test", "elseif": "elif test", "else": "else"}
        word = match["word"] or ""
        if match["opens"]:
            opened.append(bool(word))
        branch = words.get(word, "")
        if branch:
            lines.append(f"{branch}; then" if word != "else" else branch)
        else:
            lines.append("fi" if was_if else "")
    return "\n".join(lines)


# Batch files


_BATCH_TEXT = r"\"(?:[^\"\\\n]|\\[\s\S])*\""
_BATCH_TOKEN = re.compile(
    rf"(?<![^\s(&@])set[ \t]+(?:\"(?P<name>\w+)=(?P<value>[^\"\n]*)\"|(?P<bare>\w+)=(?P<rest>(?:{_BATCH_TEXT}|[^\"\n&)])*)"
    rf"|/[ap][ \t]+\"?(?P<asked>\w+)[^\n]*)|(?P<text>{_BATCH_TEXT}|\^.)"
    rf"|(?P<elif>\)[ \t]*else[ \t]+)?(?<![^\s(@])if[ \t]+(?P<loose>/i[ \t]+)?(?P<not>not[ \t]+)?"
    rf"(?:(?P<kind>defined|exist|errorlevel)[ \t]+(?P<of>{_BATCH_TEXT}|[^\s()]+)"
    rf"|(?P<left>{_BATCH_TEXT}|[^\s()=\"]+)[ \t]*(?P<sign>==|EQU|NEQ|GTR|GEQ|LSS|LEQ)[ \t]*(?P<right>{_BATCH_TEXT}|[^\s()\"]+))"
    r"[ \t]*(?P<block>\(?)|(?P<else>\)[ \t]*else\b[ \t]*)(?P<opens>\(?)|(?P<do>\bdo[ \t]*\()|(?P<end>[)\n])",
    re.IGNORECASE,
)
_BATCH_SIGNS = {"equ": "-eq", "neq": "-ne", "gtr": "-gt", "geq": "-ge", "lss": "-lt", "leq": "-le"}


def _of_batch(text: str) -> str:
    text = re.sub(r"(?im)^[ \t]*@?(?:rem\b|::).*$", "", text)
    text = re.sub(r"(?m)\^[ \t\r]*$", r"\\", text)
    text = re.sub(r"%~?(\d)", r"$\1", text.replace("%*", "$@"))
    if re.search(r"(?i)\bgoto\b(?![ \t]*:?eof)", text):  # what is behind a label may be left out
        text = re.sub(r"(?m)^[ \t]*:\w.*$", "fi; if test_label; then", text)
    return re.sub(r"[%!](\w+)[%!]", r"${\1}", _BatchBlocks().translated(text))


class _BatchBlocks:
    """Translate blocks of a batch file.

    ``opened``: the shell's end of each open block. ``waiting``: that of an ``if`` without a block.
    """

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.waiting = ""

    def translated(self, text: str) -> str:
        return _BATCH_TOKEN.sub(self._token, text)

    def _token(self, match: re.Match[str]) -> str:
        if name := match["name"] or match["bare"]:
            value = re.sub(r'(?<!\\)"', r'\\"', (match["value"] or match["rest"] or "").strip())
            return f'{name}="{value}"'
        if match["asked"]:
            return f"{match['asked']}=$(command)"
        if match["left"] or match["kind"]:
            self._open(match["block"], is_inner=match["elif"] is not None)
            return f"{'; elif' if match['elif'] else 'if'} {_batch_test(match)}; then "
        if match["else"]:
            self._open(match["opens"], is_inner=True)
            return "; else "
        if match["do"]:
            self.opened.append("")
            return ";"
        if match["end"] == "\n":
            ended, self.waiting = self.waiting, ""
            return f"{ended}\n"
        return f"; {self.opened.pop()}" if match["end"] and self.opened else match[0]

    def _open(self, block: str, *, is_inner: bool) -> None:
        closes = self.opened.pop() if is_inner and self.opened else "fi"
        if block:
            self.opened.append(closes)
        else:
            self.waiting += f"; {closes}"


def _batch_test(match: re.Match[str]) -> str:
    """Return the test of an ``if`` as a shell's."""
    negated = "! " if match["not"] else ""
    if match["kind"]:
        is_variable = match["kind"].lower() == "defined"
        return f'[ {negated}-n "${match["of"]}" ]' if is_variable else "test_file"
    equal = "-ieq" if match["loose"] else "="
    sign = _BATCH_SIGNS.get(match["sign"].lower(), equal)
    return f"[ {negated}{match['left']} {sign} {match['right']} ]"


# Nix

_NIX_STRING = (
    r"\"(?:[^\"\\$]|\\.|\$\{(?:[^{}\"]|\"[^\"\n]*\")*\}|\$)*\"|''(?:(?!'')[\s\S]|'''|''\$)*''"
)
_NIX_LIST = rf"\[(?:{_NIX_STRING}|\#[^\n]*|[^\[\]\"#])*\]"
_NIX_ASSIGNED = re.compile(
    rf"(?P<name>[\w.\"-]+)\s*=\s*(?P<before>(?:[\w.()$/-]+\s+|\(\s*)*?(?:\"[^\"\n]?\"\s+)?)"
    rf"(?P<value>{_NIX_STRING}|{_NIX_LIST})"
)
_NIX_ADDED = re.compile(
    rf"\s*\+\+(?P<before>\s*(?:\(\s*)?(?:[\w.]+(?:\s+|(?=;))(?:\([^()]*\)\s*|[\w.]+\s+)*)?)(?P<value>{_NIX_LIST})?[\s)]*"
)
_NIX_JOINED = re.compile(
    r"\"?\$\{(?:\w+\.)*(?:escapeShellArgs|concatStringsSep\s+\"[ ]\"|concatStrings)\s+(?:\w+\.)*(\w+)\}\"?"
)
_NIX_TOKEN = re.compile(rf"(?P<comment>\#[^\n]*)|(?P<string>{_NIX_STRING})|(?P<other>[^\s()]+)")
_NIX_FUNCTIONS = frozenset(("toString", "escapeShellArg", "lib.escapeShellArg", "builtins.toJSON"))


def _of_nix(text: str) -> str:
    """Return the commands and scripts that are assigned, and the other texts as variables. A list
    after an image is what a container of it is started with."""
    out: list[str] = []
    image, line = "", 0
    for match in _NIX_ASSIGNED.finditer(text):
        name, value = match["name"].strip('"').rpartition(".")[2], match["value"]
        if value.startswith("["):
            is_text = "concat" in match["before"]
            translated = _nix_words(value, quotes=not is_text)
            if name in ("cmd", "command", "args") and image:
                translated = f"docker run {image} {translated}"
            elif not is_text:
                added = _nix_added(text, match.end())
                translated = f"{name}=( {translated}{added} )"
        else:
            translated = _nix_text(value)
            if name == "image":
                image = translated
                continue
            if re.match(r"\s*\+", text[match.end() :][:MAX_LENGTH]):
                translated = f"{translated} $MORE_ARGS"
            if re.match(r"\n(?:.*\n)*?[ \t]*\[(?:Container|Service)\]", translated):  # a whole unit
                translated = f": <<UNIT{translated}\nUNIT\n"
            elif not re.search(r"\s", translated.strip()):
                translated = f'{name}="{translated}"' if name.isidentifier() else ""
        start = text.count("\n", 0, match.start())
        out.append("\n" * max(start - line, 1) + translated)
        line = max(start, line + 1) + translated.count("\n")
    return "".join(out)


def _nix_added(text: str, at: int) -> str:
    """Return the words that ``++`` adds to a list: those of other lists, and a variable for what a
    condition or another expression adds."""
    added = ""
    while match := _NIX_ADDED.match(text, at):
        at = match.end()
        is_certain = match["value"] is not None and not match["before"].strip()
        words = _nix_words(match["value"], quotes=True) if match["value"] else ""
        added += f" {words}" if is_certain else " $MORE_ARGS"
    return added


def _nix_words(text: str, *, quotes: bool) -> str:
    """Return the items of a list. ``quotes``: each is a word of its own."""
    words = []
    for match in _NIX_TOKEN.finditer(text[1:-1]):
        if match["string"]:
            word = " ".join(_nix_text(match["string"]).split("\n"))
            words.append('"' + re.sub(r'([\\"])', r"\\\1", word) + '"' if quotes else word)
        elif match["other"] and match["other"] not in _NIX_FUNCTIONS:
            words.append(f"${{{match['other'].rpartition('.')[2]}}}")
    return " ".join(words)


def _nix_text(text: str) -> str:
    inner = text[2:-2] if text.startswith("''") else re.sub(r"\\(.)", r"\1", text[1:-1])
    inner = inner.replace("''$", "$")
    inner = _NIX_JOINED.sub(r"${\1[@]}", inner)
    return re.sub(r"\$\{(?:[\w.]+\.)?(\w+)\}", r"${\1}", inner)


# Lists of words in JavaScript, Go, Rust, Bicep, TOML and property lists

_STRING = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`"
_SOURCE_TOKEN = re.compile(
    rf"(?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?)|(?P<string>{_STRING})|(?P<key>\w+)[ \t]*:(?!=)|(?P<glue>\)\s*\.args?\(|[\s\[\](),&])"
    r"|(?P<function>[A-Za-z_][\w.]*!?)\((?P<argument>[^()\"'`\n]*\))?|(?P<name>[A-Za-z_][\w.]*|\d+)|(?P<other>.)"
)
_COMMAND_KEYS = ("script", "command", "cmd", "args", "entrypoint")
_SPEAKS = re.compile(r"(?i).*(?:log|print\w*|error|warn|info|message|raise|throw)!?")


def _of_source(text: str) -> str:
    """Return commands that are written as adjacent strings, and containers whose image and words are
    values of keys. Other expressions between the strings may stand for more words."""
    out: list[str] = []
    words: list[str] = []
    image = key = ""
    depth = start = 0
    for match in _SOURCE_TOKEN.finditer(f"{text};"):
        kind, token = match.lastgroup, match[0]
        if kind == "string" and key == "image":
            image = token
        elif kind == "string" and key != "-":  # a text below ``args`` has several words
            start = start if words else depth
            words.append(token[1:-1] if key == "args" and " " in token else token)
        elif words and (kind == "name" or match["argument"]):
            words.append(f"${match['name'] or 'VALUE'}")
        elif kind == "glue":
            depth += sum(token.count(sign) for sign in "([") - sum(map(token.count, ")]"))
        elif kind in ("key", "function", "other") and not (key == "image" and kind == "function"):
            if words and kind != "key" and token not in "{};":
                words.append("$MORE_ARGS")
            depth += kind == "function"
            key = _key_after(match, key)
        if words and (depth < start or kind in ("function", "other") or key == "-"):
            out.append(f"{f'docker run {image}' if image else ''} {' '.join(words)};")
            words = []
        out.append(_lines_of(token) if not words else "")
        image = "" if kind == "other" and token in "{};" else image
    return "".join(out)


def _key_after(match: re.Match[str], key: str) -> str:
    """Return the key below which the next strings are; ``-`` for one without commands."""
    if match.lastgroup == "key":
        return match["key"] if match["key"] in ("image", *_COMMAND_KEYS) else "-"
    return "-" if _SPEAKS.fullmatch(match["function"] or "") else ""


def _of_toml(text: str) -> str:
    return re.sub(
        rf"(?m)^([ \t]*)(?:cmd|command|entrypoint|run|args)[ \t]*=[ \t]*\[((?:{_STRING}|[^\[\]\"'`])*)\]",
        lambda match: match[1] + " ".join(re.findall(_STRING, match[2])) + _lines_of(match[2]),
        text,
    )


def _of_property_list(text: str) -> str:
    arrays = re.findall(r"<array>((?:(?!<array>).)*?)</array>", text, re.DOTALL)
    return "\n".join(" ".join(re.findall(r"<string>([^<]*)</string>", array)) for array in arrays)


_TRANSLATIONS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys((".js", ".cjs", ".mjs", ".ts", ".go", ".rs", ".bicep"), _of_source),
    ".toml": _of_toml,
    ".plist": _of_property_list,
    ".ps1": _of_powershell,
    ".bat": _of_batch,
    ".cmd": _of_batch,
    ".nix": _of_nix,
}
