"""Servers that commands of a shell start: words, variables, arrays, nested shells, containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile

from .findings import UNSET, ServerCommand, Word, literal

MAX_COMMAND = 64 * 1024
"""Characters to which a word may grow when variables are replaced: each may hold two others."""
MAX_WORDS = 5_000
"""Words of a command, after its arrays and variables are replaced."""
MAX_NESTED = 5
"""Depth of scripts inside scripts (``sh -c "..."``) and of containers inside containers."""

# Programs and images
_MODULE = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server")
_PROGRAM_NAMES = ("vllm", "vllm.entrypoints.cli.main")
_OWN_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-\w+)*(?:[:@}]|$)")
_IMAGE = re.compile(r"(?:^|[/-])vllm(?:[-/:@}]|$)|(?i:\$\{?vllm_?image\b)")
_OTHER_IMAGE = re.compile(
    r"tritonserver|(?:bench\w*|client|gradio|rag|ui)-(?:[\w-]*-)?vllm|vllm[\w-]*-(?:router|bench\w*|tests?|sim|simulator|client|exporter|operator|proxy|gateway|ui|router\w*)\b"
)
_PROGRAM = re.compile(
    r"(?:.*/)?(?:(?:ba|da|z|k)?sh|python[\d.]*|sleep|tail|env|ray|tini|nvidia-smi|pip3?|\w+\.(?:sh|py))|/(?:usr/)?s?bin/.*"
)
"""The first word after an image that replaces its entrypoint, so that it starts no server."""
_START_SCRIPT = re.compile(
    r"(?:.*/)?(?!(?:.*[_-])?(?:ray|worker|bench|test|download|check|health|init))[\w-]*"
    r"(?:(?:start|serve|launch|run|entrypoint)[\w-]*\.(?:sh|py)|vllm[\w-]*entrypoint[\w-]*|entrypoint[\w-]*vllm[\w-]*)"
)
"""A script elsewhere that probably starts the server, if an image or its name says vLLM."""
_TELLING = re.compile(
    r"--(?:max-model-len|gpu-memory-utilization|enforce-eager|max-num-seqs|max-num-batched-tokens?|tool-call-parser"
    r"|enable-auto-tool-choice|enable-prefix-caching|enable-chunked-prefill|kv-transfer-config|max-seq-len-to-capture|swap-space)(?:=.*)?",
    re.DOTALL,
)
"""Options that hardly any other server has."""
_PROGRAM_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
_ENGINES = ("docker", "podman", "nerdctl")
_ENGINE_VARIABLE = re.compile(r"(?i)\$\{?\w*(?:docker|podman|runtime|engine)\w*\}?")
_IMAGE_RUNNERS = ("apptainer", "singularity")
_IMAGE_FILE = re.compile(r"(?:docker://)?(.*vllm[\w.:/-]*?)(?:_(v?\d[\w.]*?))?(?:\.sif)?")
_MODEL = re.compile(r"[\w.-]+/[\w.-]+")
_FLAGS = re.compile(
    r"-[ditP]+|-q|--(?:detach|interactive|tty|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable|quiet|replace)"
)
"""Options of ``docker run`` that take no value."""

# Words of a shell
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-[^{}]*)?\}|\((\w+)\))")
_ARRAY = re.compile(
    r"\$\{(\w+)\[[@*]\](?:[:+-][^{}]*)?\}|\$\{\w+\[[@*]\]\+\"?\$\{(\w+)\[[@*]\]\}\"?\}"
)
_SPEAKS = re.compile(
    r"pkill|pgrep|grep|printf|(?:\w+_)?(?:echo|log|info|warn|warning|error|debug|print|die|fail|usage|msg|say|ok|success|header)(?:_\w+)?"
)
"""Commands whose words are texts, not commands."""
_RUNNERS = ("exec", "eval", "nohup", "setsid", "time")
_DECLARES = ("export", "declare", "local", "readonly", "set", "env")
_OPENS, _CLOSES = ("if", "case", "while", "until", "for", "select"), ("fi", "esac", "done")
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time")
_PART = re.compile(
    r"""(?P<blank>(?:[ \t\r`]|\\[ \t\r]*\n|\\[ \t])+)"""  # `\ ` is what YAML makes of `\` in a folded scalar
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
"""What a template adds on a condition, without another block in it."""
MAX_BLOCKS = 200
MAX_BRANCHES = 50
"""Depth of ``if`` and loops in each other."""
MAX_IFS = 500
"""Of which the branches are read apart: each copies the variables."""
MAX_COMPARED = 8_000
"""Characters of a text of which it is told what two branches have in common."""
_IN_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_ESCAPED = re.compile(r'\\(?:\n|(["\\]))')
_MORE = "$MORE_ARGS"
"""What a condition may add."""
_ALL_ARGUMENTS = ("$@", "$*", "${@}")
_END = ";"

Known = dict[str, "Word | list[Word] | None"]
"""Values of variables; a list for an array, None for a variable with several values."""


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
            parts.append(_ESCAPED.sub(r"\1", part) if kind == "double" else part)
        elif parts:
            if quoted or any(part not in "'\"" for part in parts):
                words.append(Word("".join(parts), start, quoted))
            parts, quoted = [], False
        if match:
            line += match[0].count("\n")
            if kind == "end" and (newlines_end or match[0] != "\n"):
                words.append(Word(_END, line, sign=match[0]))
    return words


def commands(words: Iterable[Word]) -> Iterator[list[Word]]:
    """Yield the words of each command."""
    yield from (command for _, command in _commands(words))


def _commands(words: Iterable[Word]) -> Iterator[tuple[str, list[Word]]]:
    """Yield the words of each command, and the sign before it."""
    command: list[Word] = []
    before = "\n"
    for word in words:
        if not word.sign:
            command.append(word)
        elif command:
            yield before, command
            command, before = [], word.sign
        elif before not in ("&&", "||"):  # a line may end after these
            before = word.sign
    if command:
        yield before, command


def _arrays(words: Sequence[Word]) -> Iterator[tuple[Word, list[Word] | None]]:
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


def without_blocks(text: str) -> str:
    """Return a text with a variable for each block of a template: what is in it may be left out."""
    for _ in range(MAX_BLOCKS if "{%" in text else 0):
        text, count = _BLOCK.subn(_for_block, text)
        if not count:
            break
    return text


def _for_block(match: re.Match[str]) -> str:
    # A command that went on before the block does so after it.
    goes_on = match.string[: match.start()].rstrip().endswith("\\")
    return " $TEMPLATE_ARGS " + ("\\\n" if goes_on else "\n") * match[0].count("\n")


def of_script(
    text: str,
    line: int = 1,
    variables: Mapping[str, str] | None = None,
    depth: int = 0,
) -> Iterator[ServerCommand]:
    """Yield the servers that a script starts. A variable that has one value is replaced by it.

    ``variables``: of its environment.
    """
    script = _Script(variables or {}, depth)
    tokens: list[Word] = []
    for word, items in _arrays(split(without_blocks(text), line)):
        if items is None:
            tokens.append(word)
        else:
            yield from script.run(tokens)
            tokens = []
            script.assign_array(word, items)
    yield from script.run(tokens)
    yield from script.end()
    if not script.found and not depth:
        yield from script.kept[-1:]


@dataclass
class _Branches:
    """An ``if``, whose branches are read one after the other. ``before``: the variables before it.
    ``ends``: those after each branch. ``is_taken``: the branch that is read now is known to run."""

    before: Known
    ends: list[tuple[Known, bool]] = field(default_factory=list)
    servers: list[list[ServerCommand]] = field(default_factory=lambda: [[]])
    is_taken: bool = False
    has_else: bool = False


class _Script:
    """The state of a script: its variables, and whether a command may be left out."""

    def __init__(self, variables: Mapping[str, str], depth: int) -> None:
        self.known: Known = {
            name: Word(value) for name, value in variables.items() if value != UNSET
        }
        self.exported = dict(variables)
        self._depth = depth
        self.kept: list[ServerCommand] = []
        self.found = 0
        self._branches: list[_Branches | None] = []
        self._ifs = 0
        self._sign = "\n"

    def run(self, words: Sequence[Word]) -> Iterator[ServerCommand]:
        for sign, command in _commands(words):
            self._sign = sign
            yield from self._command(command)
        signs = list(takewhile(bool, (word.sign for word in reversed(words))))
        if words:  # a line may end after "&&"
            self._sign = next((sign for sign in signs if sign != "\n"), "\n" if signs else "")

    def end(self) -> Iterator[ServerCommand]:
        """Yield the servers of what is not closed at the end."""
        while self._branches:
            yield from self._close()

    def _command(self, command: list[Word]) -> Iterator[ServerCommand]:
        while command and command[0] in (*_KEYWORDS, *_OPENS, *_CLOSES) and not command[0].quoted:
            keyword, command = command[0], command[1:]
            if keyword in _OPENS and len(self._branches) < MAX_BRANCHES:
                self._ifs += keyword == "if"
                is_read = keyword == "if" and self._ifs <= MAX_IFS
                self._branches.append(self._if(command) if is_read else None)
            elif keyword in _CLOSES and self._branches:
                yield from self._close()
            elif keyword in ("else", "elif"):
                self._next_branch(command, keyword)
            if keyword in ("for", "case", "select"):
                command = []
        words = [word for part in command for word in expanded(part, self.known)][:MAX_WORDS]
        for server in servers(words, self.exported, self._depth):
            self.found += 1
            if self._branches and (last := self._branches[-1]) is not None:
                last.servers[-1].append(server)
            else:
                yield server
        declares = words[0] if words and words[0] in _DECLARES else ""
        assigned = words[bool(declares) :]
        if all(map(_ASSIGNMENT.fullmatch, assigned)):
            for word in assigned:
                name, _, value = word.partition("=")
                self._assign(name, Word(value, word.line, word.quoted))
                if declares == "export":
                    self.exported[name] = literal(value)

    def _if(self, test: Sequence[Word]) -> _Branches:
        return _Branches(dict(self.known), is_taken=_holds(test, self.known))

    def _next_branch(self, test: Sequence[Word], keyword: str) -> None:
        if not self._branches or (branches := self._branches[-1]) is None:
            return
        branches.ends.append((self.known, branches.is_taken))
        branches.servers.append([])
        self.known = dict(branches.before)
        branches.has_else = branches.has_else or keyword == "else"
        branches.is_taken = keyword == "elif" and _holds(test, self.known)

    def _close(self) -> Iterator[ServerCommand]:
        branches = self._branches.pop()
        if branches is None:
            return
        ends = [*branches.ends, (self.known, branches.is_taken)]
        taken = [known for known, is_taken in ends if is_taken]
        others = [known for known, is_taken in ends if not is_taken]
        if not branches.has_else and not taken:
            others.append(branches.before)
        self.known = _merged_variables([*taken, *others])
        started = _alternatives(branches.servers)
        if self._branches and (last := self._branches[-1]) is not None:
            last.servers[-1] += started
        else:
            yield from started

    @property
    def _is_conditional(self) -> bool:
        return None in self._branches or self._sign in ("&&", "||")

    def _assign(self, name: str, value: Word) -> None:
        if name.endswith("+"):
            name = name[:-1]
            before = self.known.get(name)
            value = Word(f"{before if isinstance(before, Word) else ''}{value}", value.line)
        before = self.known.get(name)
        self._note_command(value)
        if "$(" in value:  # what a command prints
            self.known[name] = None
        elif not self._is_conditional:
            self.known[name] = value if len(value) <= MAX_COMMAND else None
        else:
            self.known[name] = _either(before, value)

    def _note_command(self, value: Word) -> None:
        """Note a command that is kept in a variable: it may be run where nothing shows it."""
        if "vllm" in value and re.search(r"\s", value) and self._depth < MAX_NESTED:
            started = servers(split(value, value.line), self.exported, self._depth + 1)
            self.kept += [replace(s, complete=False) for s in started if s.words]

    def assign_array(self, word: Word, items: Sequence[Word]) -> None:
        name = word.rstrip("+=")
        before = self.known.get(name, [] if "+" in word else None)
        values = [value for item in items for value in expanded(item, self.known)]
        start = before if "+" in word and isinstance(before, list) else []
        if any("vllm" in value for value in values[:5]):  # it may be run where nothing shows it
            started = servers(values, self.exported, self._depth + 1)
            self.kept += [replace(server, complete=False) for server in started if server.words]
        if not self._is_conditional:
            self.known[name] = [*start, *values][:MAX_WORDS]
        else:
            self.known[name] = _either(before, [*start, *values])


_Value = Word | list[Word] | None


def _either(before: _Value, after: _Value) -> _Value:
    """Return what is known of a variable that may have one value or the other: what both have, and
    that there may be more; None if nothing is."""
    if before == after or before is None or after is None:
        return before if before == after else None
    if isinstance(before, list) and isinstance(after, list):
        return _common(before, after)
    if isinstance(before, Word) and isinstance(after, Word):
        if not before or after.startswith(f"{before} "):
            return before if before.endswith(_MORE) else Word(f"{before} {_MORE}", after.line)
        if max(len(before), len(after)) > MAX_COMPARED:
            return None
        if len(split(before)) > 1 and len(split(after)) > 1:
            words = _common(split(before, before.line), split(after, after.line))
            return Word(" ".join(words), after.line)
    return None


def _common(some: Sequence[Word], others: Sequence[Word]) -> list[Word]:
    """Return the options that two lists of words have with the same values, and a variable for the
    other ones."""
    shorter, longer = sorted((list(some), list(others)), key=len)
    if longer[: len(shorter)] == shorter and shorter and longer[len(shorter) :] != [_MORE]:
        shorter = shorter[:-1] if shorter[-1] == _MORE else shorter
        return [*shorter, Word(_MORE, shorter[-1].line if shorter else 1)]  # something was added
    groups, wanted = list(_groups(some)), set(_groups(others))
    model = {group[1:]: group for group in (*groups, *wanted) if group[0] == "--model"}
    groups = [model.get(group, group) for group in groups]
    wanted = {model.get(group, group) for group in wanted}
    same = [word for group in groups if group in wanted for word in group]
    line = some[0].line if some else 1
    is_open = set(groups) != wanted and _MORE not in same
    return [*same, *([Word(_MORE, line)] if is_open else [])]


def _groups(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """Yield each option with its values, first what is before all options, word by word."""
    group: list[Word] = []
    for word in words:
        alone = word in (_MORE, *_ALL_ARGUMENTS) or word.startswith("-")
        if alone or not (group and group[0].startswith("-")):
            if group:
                yield tuple(group)
            group = []
        group.append(word)
    if group:
        yield tuple(group)


def _merged_variables(branches: Sequence[Known]) -> Known:
    """Return what is known of the variables after one of several branches."""
    names = {name for known in branches for name in known}
    merged: Known = {}
    for name in names:
        value = branches[0].get(name)
        for known in branches[1:]:
            value = _either(value, known.get(name))
        merged[name] = value
    return merged


def _alternatives(branches: Sequence[Sequence[ServerCommand]]) -> list[ServerCommand]:
    """Return the servers of the branches of an ``if``. Two of the same model are one, of which the
    options are known that both have."""
    found: list[ServerCommand] = []
    for servers_of_branch in branches:
        for server in servers_of_branch:
            same = (n for n, other in enumerate(found) if _is_alternative(other, server))
            if (number := next(same, None)) is None:
                found.append(server)
            else:
                other = found[number]
                words = _common(other.words, server.words)
                groups = dict.fromkeys((*_groups(other.words), *_groups(server.words)))
                same_groups = set(_groups(words))
                more = (word for group in groups if group not in same_groups for word in group)
                found[number] = replace(
                    other,
                    words=tuple(words),
                    complete=other.complete and server.complete,
                    sometimes=(*other.sometimes, *more),
                )
    return found


def _model_in(words: Sequence[Word]) -> str:
    """Return the model that arguments name; empty if they name none."""
    groups = list(_groups(words))
    given = (" ".join(group).partition("--model")[2] for group in groups)
    option = next((text for text in given if text.startswith((" ", "="))), "")
    alone = (group[0] for group in groups if not group[0].startswith("-"))
    return option[1:] or next((word for word in alone if word not in _ALL_ARGUMENTS), "")


def _is_alternative(one: ServerCommand, other: ServerCommand) -> bool:
    groups, others = set(_groups(one.words)), set(_groups(other.words))
    if ("--headless" in one.words) != ("--headless" in other.words):
        return False
    if _model_in(one.words) != _model_in(other.words):
        return False
    return one.image == other.image and len(groups & others) * 2 > max(len(groups), len(others))


def _holds(test: Sequence[Word], known: Known) -> bool:
    """Return whether a test of one variable, whose value is known, holds."""
    words = [_REFERENCE.sub(lambda match: _value(match, known), word) for word in test]
    if not words or words[0] not in ("[", "[[") or words[-1] not in ("]", "]]"):
        return False
    match words[1:-1]:
        case ["-n", value] if "$" not in value:
            return bool(value)
        case ["-z", value] if "$" not in value:
            return not value
        case [left, "=" | "==", right] if "$" not in left + right and "*" not in right:
            return left == right
        case [left, "!=", right] if "$" not in left + right and "*" not in right:
            return left != right
    return False


def servers(
    words: Sequence[Word], variables: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[ServerCommand]:
    """Yield the servers that a command starts, also through a shell or a container engine."""
    assigned = dict(variables or {})
    image = ""
    for index, word in enumerate(words if words and not _SPEAKS.fullmatch(words[0]) else ()):
        program = word.rpartition("/")[2]
        is_script = index > 0 and re.fullmatch(r"-\w*c", words[index - 1]) is not None
        if word.startswith("--container-image="):  # of SLURM
            image = word.partition("=")[2].removeprefix("docker://").replace("#", "/")
        if _ASSIGNMENT.fullmatch(word) and not is_script:
            name, _, value = word.partition("=")
            assigned[name] = literal(value)
        elif re.search(r"\s", _IN_TEMPLATE.sub("", word)):
            if _may_serve(word) and depth < MAX_NESTED:
                passed = words[index + 2 :] if is_script else ()  # after the name, $0
                for server in of_script(word, word.line, assigned, depth + 1):
                    # Without arguments it is rather the name of a process.
                    if is_script or server.words or server.image:
                        yield _with_arguments(server, passed)
        elif (is_module := _MODULE.fullmatch(word)) or (
            program in _PROGRAM_NAMES and "serve" in words[index + 1 : index + 2]
        ):
            arguments = _to_end(words[index + (1 if is_module else 2) :])
            yield ServerCommand(arguments, word.line, assigned, image)
            return
        elif (program in _ENGINES or _ENGINE_VARIABLE.fullmatch(word)) and (
            "run" in words[index + 1 : index + 3]
        ):
            if depth < MAX_NESTED:
                arguments = _to_end(words[words.index("run", index) + 1 :])
                yield from _of_container(arguments, assigned, depth + 1)
            return  # what follows are its words, read once
        elif _PROGRAM_VARIABLE.fullmatch(word) and _serves(words, index):
            is_serve = words[index + 1] == "serve"
            arguments = _to_end(words[index + (2 if is_serve else 1) :])
            yield ServerCommand(arguments, word.line, assigned, image, is_certain=False)
            return
        elif program in _IMAGE_RUNNERS and (found := _image_file(words, index)):
            for server in of_image(found[0], _to_end(words[found[1] + 1 :]), assigned, depth=depth):
                yield replace(server, complete=server.complete and bool(server.words))
            return


def is_telling(word: str) -> bool:
    """Return whether a word is an option that hardly any other server has."""
    return _TELLING.fullmatch(word.replace("_", "-")) is not None


def names_model(words: Sequence[Word]) -> bool:
    """Return whether arguments name a model. Without one it comes from elsewhere, and perhaps other
    options, too."""
    before = ["", *words]
    return any(
        re.match(r"--model(?:=|$)", word)
        or not (word.startswith("-") or re.fullmatch(r"-[^=]*", previous))
        for previous, word in zip(before, words, strict=False)
    )


def _may_serve(script: str) -> bool:
    return "vllm" in script or (script.startswith("$") and any(map(is_telling, script.split())))


def _serves(words: Sequence[Word], index: int) -> bool:
    """Return whether the variable at the beginning of a command holds vLLM's program, judged by what
    follows."""
    starts = all(map(_ASSIGNMENT.fullmatch, words[:index])) or words[index - 1] in _RUNNERS
    following = words[index + 1 : index + 2]
    is_other = re.search(r"(?i)bench|test|client|eval|python", words[index]) is not None
    if not starts or is_other or not following or following[0].endswith((".py", ".sh")):
        return False
    named = following[0] == "serve" and "vllm" in words[index].lower()
    return named or any(map(is_telling, words[index + 1 :]))


def _with_arguments(server: ServerCommand, passed: Sequence[Word]) -> ServerCommand:
    """Return a server with the arguments of the script around it for ``"$@"``."""
    if not passed or not any(word in _ALL_ARGUMENTS for word in server.words):
        return server
    words = [p for w in server.words for p in (passed if w in _ALL_ARGUMENTS else [w])]
    return replace(server, words=tuple(words[:MAX_WORDS]))


def _image_file(words: Sequence[Word], start: int) -> tuple[Word, int] | None:
    """Return the image that Apptainer runs, with the name that it has as a container's, and its
    place."""
    if "run" not in words[start + 1 : start + 3]:
        return None
    for index, word in enumerate(words[start:], start):
        match = _IMAGE_FILE.fullmatch(word)
        if match and (word.endswith(".sif") or word.startswith("docker://")):
            name = f"{match[1]}:{match[2]}" if match[2] else match[1]
            return Word(name, word.line), index
    return None


def _of_container(
    words: Sequence[Word], variables: Mapping[str, str], depth: int
) -> Iterator[ServerCommand]:
    """Yield the servers of the words after ``docker run``: options, an image, and its arguments."""
    assigned = dict(variables)
    entrypoint: list[Word] = []
    at = 0
    while at < len(words) and (words[at].startswith("-") or _holds_options(words[at])):
        word = words[at]
        option, equals, value = word.partition("=")
        takes_next = word.startswith("-") and not equals and not _FLAGS.fullmatch(option)
        if takes_next and not any(map(_OWN_IMAGE.search, words[at + 1 : at + 2])):
            at += 1
            value = words[at] if at < len(words) else ""
        if option in ("-e", "--env"):
            name, equals, text = value.partition("=")
            assigned[name] = literal(text) if equals else UNSET
        elif option == "--entrypoint":
            entrypoint = [Word(value, word.line)]
        at += 1
    if at < len(words):
        yield from of_image(words[at], words[at + 1 :], assigned, entrypoint, depth)


def _holds_options(word: Word) -> bool:
    """Return whether a bare variable before the image holds more options of the engine."""
    return (
        re.fullmatch(r"(?i)\$\{?\w*(?:arg|opt|flag|extra|mount|volume|env|gpu)\w*\}?", word)
        is not None
    )


def of_image(
    image: Word,
    words: Sequence[Word],
    variables: Mapping[str, str],
    entrypoint: Sequence[Word] = (),
    depth: int = 0,
) -> Iterator[ServerCommand]:
    """Yield the servers of a container: those that its words start, or else the image's own."""
    started = list(servers([*entrypoint, *words], variables, depth))
    first = words[0] if words else Word("-", image.line)
    is_own, is_vllm = _OWN_IMAGE.search(image) is not None, is_image(image)
    names_model = _MODEL.fullmatch(first) and any(word.startswith("--") for word in words[1:2])
    runs_server = first.startswith("-") or (is_own and not _PROGRAM.fullmatch(first))
    runs_server = runs_server or names_model is not None
    is_vllm = is_vllm or (image.startswith("$") and any(map(is_telling, words)))
    if not started and starts_elsewhere([*entrypoint, *words], is_vllm):
        started = [ServerCommand((), first.line, variables, is_certain=False, complete=False)]
    elif not started and not entrypoint and runs_server and is_vllm:
        arguments = _to_end(words[1:] if first == "serve" else words)
        started = [
            ServerCommand(
                arguments, first.line, variables, is_certain=is_own, complete=is_own or bool(words)
            )
        ]
    # A script that is the entrypoint may add options to the command that it is given.
    is_open = any(word.endswith(".sh") for word in [*entrypoint, *words][:1])
    yield from (
        replace(server, image=str(image), complete=server.complete and not is_open)
        for server in started
    )


def is_image(image: str) -> bool:
    """Return whether the name of an image says that it serves with vLLM."""
    return _IMAGE.search(image) is not None and not _OTHER_IMAGE.search(image)


def starts_elsewhere(words: Sequence[Word], is_vllm: bool) -> bool:
    """Return whether a command runs a script, which is not in the file, that probably starts the
    server."""
    scripts = [part for word in words for part in word.split()]
    return any(
        _START_SCRIPT.fullmatch(part) and (is_vllm or "vllm" in part.rpartition("/")[2])
        for part in scripts[:50]
    )


def is_own_image(image: str) -> bool:
    return _OWN_IMAGE.search(image) is not None


def _to_end(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words before the end of a command; a list in YAML has it as a word."""
    return tuple(takewhile(lambda word: word not in ("&&", _END, "|", "||", "&"), words))


def expanded(word: Word, known: Mapping[str, Word | list[Word] | None]) -> list[Word]:
    """Return a word with the known variables replaced: several words if it is an array, or one
    without quotes."""
    if "$" not in word:
        return [word]
    if array := _ARRAY.fullmatch(word):
        items = known.get(array[1] or array[2])
        return items if isinstance(items, list) else [Word(word, word.line)]
    whole = _REFERENCE.fullmatch(word)
    value = known.get(next(filter(None, whole.groups()))) if whole else None
    if isinstance(value, Word) and not word.quoted:
        return split(value, value.line)
    text = _REFERENCE.sub(lambda match: _value(match, known), word)
    return [Word(text, word.line, word.quoted) if len(text) <= MAX_COMMAND else word]


def _value(match: re.Match[str], known: Mapping[str, Word | list[Word] | None]) -> str:
    value = known.get(next(filter(None, match.groups())))
    return value if isinstance(value, str) else match[0]
