"""What a file says about servers of vLLM: their command lines, images and variables, names of
variables, routes and metrics, and releases that it installs. Each has its line.

One reader for shell scripts, Dockerfiles, compose files, Kubernetes manifests, Helm values and
templates, workflows, systemd units and ``.env`` files. ``audit --serve`` and ``uses`` both take its
findings, so that they cannot disagree about a file. Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice, takewhile
from typing import Any

from ...util.documents import MAX_NODES, YamlSyntaxError, parse_yaml

UNSET = "?"
"""The value of an option that the file leaves to a variable, or that an unknown option may mean."""
MAX_COMMAND = 64 * 1024
"""Characters to which a word may grow when variables are replaced: each may hold two others."""
MAX_BLOCK = 400
"""Lines of a YAML scalar that are searched for a word."""
MAX_REPAIRED = 20
MAX_REPAIRED_TEXT = 100_000
"""Lines that are left out of YAML which cannot be parsed, and the size of a text that is parsed so
often."""
MAX_NESTED = 5
"""Scripts within words of scripts, as in ``sh -c "..."``."""
_LINE = 100_000
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}")
_STANDS_FOR_TEMPLATE = "$TEMPLATE"
_ONLY_TEMPLATES = re.compile(r"(?m)^[ \t]*(?:\$TEMPLATE[ \t]*)+$")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_FROM = re.compile(r"(?i)\A(?:[ \t]*(?:#[^\n]*|ARG[ \t][^\n]*)?\n)*[ \t]*FROM[ \t]")
_INSTRUCTION = re.compile(r"(?m)^[ \t]*([A-Za-z]+)[ \t]+((?:[^\\\n]+|\\[ \t\r]*\n|\\.)*)")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_UNIT_COMMAND = re.compile(r"(?m)^Exec\w+=[-@:+!]*")
_UNIT_VARIABLE = re.compile(r"(?m)^Environment=")

# Programs and images
_MODULE = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server")
_STARTS = re.compile(r"\bserve\b|\bapi_server\b|\bvllm-openai\b|docker|podman|nerdctl")
"""What a script or JSON has that starts a server. Others are not split into words, which takes time:
logs, dashboards, records."""
_TAG = re.compile(r"(?<![\w.-])vllm/vllm-openai:v?(\d+(?:\.\d+)+(?:\.post\d+)?)(?![\w.])")
_OWN_IMAGE = re.compile(r"(?:^|[/-])vllm-openai(?:[:@]|$)")
_IMAGE = re.compile(r"(?:^|[/-])vllm(?:[-/:@]|$)")
_PROGRAM = re.compile(
    r"(?:.*/)?(?:(?:ba|da|z|k)?sh|python[\d.]*|sleep|tail|env|ray|tini|\w+\.(?:sh|py))|/(?:usr/)?s?bin/.*"
)
"""The first word after an image that replaces its entrypoint, so that it starts no server."""
_ENGINES = ("docker", "podman", "nerdctl")
_FLAGS = re.compile(
    r"-[ditP]+|-q|--(?:detach|interactive|tty|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable|quiet|replace)"
)
"""Options of ``docker run`` that take no value."""

# Words of a shell
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-[^{}]*)?\})")
_SEARCHES = ("pkill", "pgrep", "grep")
_DECLARES = ("export", "declare", "local", "readonly", "set", "env")
_PART = re.compile(
    r"""(?P<blank>(?:[ \t\r`]|\\[ \t\r]*\n|\\[ \t])+)"""  # `\ ` is what YAML makes of `\` in a folded scalar
    r"""|(?P<redirection>(?<!\S)(?:\d?>>?|<<?<?-?|&>)(?:&\d|&?[ \t]*[^\s;|&]+))"""
    r"""|(?P<end>\n|&&|\|\|?|;;?|&|[()])"""
    r"""|(?P<comment>(?<!\S)\#[^\n]*)"""
    r"""|(?P<plain>(?:\{\{[^{}]*\}\}|\$\([^()\n]*\)|\$\{[^{}\n]*\}|[^\s\\'"|&;()`{$]+|[{$]|(?<=[a-z])'(?=[a-z]))+)"""
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<other>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(?:\n|(["\\]))')

# Keys of YAML
_WORDS = ("entrypoint", "command", "args", "extraArgs")
_MORE_WORDS = re.compile(r"(?i)(?:.*[a-z_-])?(?:args|arguments|parameters)")
_LABELS = ("name", "container_name")
_CHART = {
    "enableLoRA": "enable_lora",
    "enableTool": "enable_auto_tool_choice",
    "modelURL": "model",
    "toolCallParser": "tool_call_parser",
}
"""Settings of vLLM's Helm chart and operator beside ``vllmConfig``, and what they mean."""

# Names in any text
_NAMES = {
    "environment": re.compile(r"\bVLLM_[A-Z0-9_]+\b"),
    "metric": re.compile(r"\bvllm:[a-z][a-z0-9_]+"),
    "route": re.compile(
        r"(?:https?://[^/\s\"']+|\{[^{}]*\}|\$\{?\w+\}?|:\d{2,5}|^)(/[\w/.-]+)", re.MULTILINE
    ),
}
_INSTALLED = re.compile(
    r"""\bvllm(?:\[[\w,-]*\])?\s*((?:===?|[<>~!]=|[<>])\s*[\w.*+!]+(?:\s*,\s*(?:[=<>~!]=|[<>])\s*[\w.*]+)*)"""
)


class Word(str):
    """A word of a command and its line. ``quoted``: it is one word whatever its variables hold."""

    def __new__(cls, text: str, line: int = 1, quoted: bool = False) -> Word:
        word = super().__new__(cls, text)
        word.line, word.quoted = line, quoted
        return word

    line: int
    quoted: bool


@dataclass(frozen=True)
class ServerCommand:
    """A start of the server. ``words``: its arguments, with the model.

    ``settings``: options that the file gives as keys, by their names with underscores.
    ``label``: the name of the container. ``is_certain``: the program or vLLM's own image is named;
    otherwise only the name of another image or of a backend says that it is vLLM. ``at_build``: a
    step that builds an image runs it.
    """

    words: tuple[Word, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    image: str = ""
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    is_certain: bool = True
    at_build: bool = False

    @property
    def release(self) -> str:
        """The version in the tag of vLLM's own image; empty if there is none."""
        match = _TAG.search(self.image)
        return match[1] if match else ""


@dataclass(frozen=True)
class Mention:
    """A name in the text that may be one of vLLM's: of a variable ("environment"), a "metric" or a
    "route"."""

    kind: str
    name: str
    line: int


@dataclass(frozen=True)
class Pin:
    """Releases that the file installs, or names as an image."""

    specifier: str
    line: int


@dataclass(frozen=True)
class Unreadable:
    """The text is not what its name says. The other findings are what could be read anyway."""

    reason: str


DeploymentFinding = ServerCommand | Mention | Pin | Unreadable


def read(text: str, name: str) -> Iterator[DeploymentFinding]:
    """Yield what a text says; the name of its file tells its format."""
    yield from _servers_in(text, name)
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line[:_LINE])
        yield from (Mention(kind, found, number) for kind, found in names_in(line))
        for version in _TAG.findall(line):
            yield Pin(f"=={version}", number)
        if "install" in line or "uv " in line:
            for specifier in _INSTALLED.findall(line):
                yield Pin(specifier.replace(" ", ""), number)


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds and names of what a text mentions; see ``Mention``."""
    for kind, pattern in _NAMES.items():
        for name in set(pattern.findall(text)):
            yield kind, name


def is_dockerfile(file: str) -> bool:
    name = file.rpartition("/")[2].lower()
    return name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")


def _servers_in(text: str, name: str) -> Iterator[ServerCommand | Unreadable]:
    starts = _STARTS.search(text) is not None
    if name.endswith((".yaml", ".yml", ".tpl")) or (starts and name.endswith(".json")):
        yield from _of_yaml(text)
    elif is_dockerfile(name) or (not name.endswith((".sh", ".bash")) and _FROM.search(text)):
        yield from _of_dockerfile(text)
    elif starts:
        if name.endswith(".service"):
            text = _UNIT_VARIABLE.sub("export ", _UNIT_COMMAND.sub("", text))
        yield from of_script(text)


# Commands of a shell


def split(text: str, line: int = 1) -> list[Word]:
    """Return the words of a text as a shell splits it, without redirections and comments.

    The ends of commands are words, too. Quotes that do not match are left out.
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
            if kind == "end":
                words.append(Word(_END, line))
    return words


def commands(words: Iterable[Word]) -> Iterator[list[Word]]:
    """Yield the words of each command."""
    for is_end, command in groupby(words, lambda word: word == _END and not word.quoted):
        if not is_end:
            yield list(command)


def of_script(text: str, line: int = 1) -> Iterator[ServerCommand]:
    """Yield the servers that a script starts. A variable that has one value is replaced by it."""
    known: dict[str, Word | None] = {}
    exported: dict[str, str] = {}
    for command in commands(split(text, line)):
        words = [word for part in command for word in _expanded(part, known)]
        yield from servers(words, exported)
        declares = words[0] if words and words[0] in _DECLARES else ""
        assigned = words[bool(declares) :]
        if all(map(_ASSIGNMENT.fullmatch, assigned)):
            for word in assigned:
                name, _, value = word.partition("=")
                known[name] = Word(value, word.line) if known.get(name, value) == value else None
                if declares == "export":
                    exported[name] = literal(value)


def servers(
    words: Sequence[Word], variables: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[ServerCommand]:
    """Yield the servers that a command starts, also through a shell or a container engine."""
    assigned = dict(variables or {})
    for index, word in enumerate(words if words and words[0] not in _SEARCHES else ()):
        program = word.rpartition("/")[2]
        if _ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            assigned[name] = literal(value)
        elif re.search(r"\s", word) and "vllm" in word and depth < MAX_NESTED:
            for command in commands(split(word, word.line)):
                yield from servers(command, assigned, depth + 1)
        elif (is_module := _MODULE.fullmatch(word)) or (
            program == "vllm" and "serve" in words[index + 1 : index + 2]
        ):
            arguments = _to_end(words[index + (1 if is_module else 2) :])
            yield ServerCommand(arguments, word.line, assigned)
            return
        elif program in _ENGINES and "run" in words[index + 1 : index + 3]:
            arguments = _to_end(words[words.index("run", index) + 1 :])
            started = list(_of_container(arguments, assigned))
            yield from started
            if started:
                return


def _of_container(words: Sequence[Word], variables: Mapping[str, str]) -> Iterator[ServerCommand]:
    """Yield the servers of the words after ``docker run``: options, an image, and its arguments."""
    assigned = dict(variables)
    entrypoint: list[Word] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        option, equals, value = word.partition("=")
        takes_next = not equals and not _FLAGS.fullmatch(option)
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
        yield from _of_image(words[at], words[at + 1 :], assigned, entrypoint)


def _of_image(
    image: Word,
    words: Sequence[Word],
    variables: Mapping[str, str],
    entrypoint: Sequence[Word] = (),
) -> Iterator[ServerCommand]:
    """Yield the servers of a container: those that its words start, or else the image's own."""
    started = list(servers([*entrypoint, *words], variables))
    first = words[0] if words else Word("-", image.line)
    is_own = _OWN_IMAGE.search(image) is not None
    runs_server = first.startswith("-") or (is_own and not _PROGRAM.fullmatch(first))
    if not started and not entrypoint and runs_server and _IMAGE.search(image):
        started = [ServerCommand(tuple(words), first.line, variables, is_certain=is_own)]
    yield from (replace(server, image=str(image)) for server in started)


def literal(value: str) -> str:
    """Return ``value``, or ``UNSET`` if a variable decides it."""
    return UNSET if "$" in value or "{{" in value else value


_END = ";"


def _to_end(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words before the end of a command; a list in YAML has it as a word."""
    return tuple(takewhile(lambda word: word not in ("&&", _END, "|", "||", "&"), words))


def _expanded(word: Word, known: Mapping[str, Word | None]) -> list[Word]:
    """Return a word with the known variables replaced: several words if it is one without quotes."""
    if "$" not in word:
        return [word]
    whole = _REFERENCE.fullmatch(word)
    value = known.get(whole[1] or whole[2]) if whole else None
    if value is not None and not word.quoted:
        return split(value, value.line)
    text = _REFERENCE.sub(lambda match: known.get(match[1] or match[2]) or match[0], word)
    return [Word(text, word.line, word.quoted) if len(text) <= MAX_COMMAND else word]


# Dockerfiles


def _of_dockerfile(text: str) -> Iterator[ServerCommand]:
    variables: dict[str, str] = {}
    arguments: dict[str, Word | None] = {}
    base, command = Word(""), list[Word]()
    entrypoint: list[Word] | None = None
    line, at = 1, 0
    for match in _INSTRUCTION.finditer(text):
        line, at = line + text.count("\n", at, match.start()), match.start()
        name, rest = match[1].upper(), match[2]
        words = _exec_form(rest, line) if rest.startswith("[") else split(rest, line)
        if name == "FROM":
            images = [word for word in words if not word.startswith("--")]
            base = _expanded(images[0], arguments)[0] if images else base
            entrypoint, command = None, []
        elif name in ("ENV", "ARG"):
            if "=" not in rest:
                words = [Word("=".join(rest.split(None, 1)), line)]
            assigned = dict(word.split("=", 1) for word in words if "=" in word)
            arguments |= {key: Word(value, line) for key, value in assigned.items()}
            if name == "ENV":
                variables |= {key: literal(value) for key, value in assigned.items()}
        elif name == "ENTRYPOINT":
            entrypoint, command = words, []
        elif name == "CMD":
            command = words
        else:  # a step of the build, or a line of a script in it
            for server in of_script(match[0], line):
                yield replace(server, at_build=True)
    if entrypoint is None:
        yield from _of_image(base, command, variables)
    else:
        for server in servers([*entrypoint, *command], variables):
            yield replace(server, image=str(base))


def _exec_form(text: str, line: int) -> list[Word]:
    return [
        Word(re.sub(r"\\(.)", r"\1", match[1]), line + text.count("\n", 0, match.start()), True)
        for match in islice(_STRING.finditer(text), 2000)
    ]


# YAML


def _of_yaml(text: str) -> Iterator[ServerCommand | Unreadable]:
    lines = text.splitlines()
    try:
        documents = parse_yaml(text, text_type=Word)
    except ValueError as error:
        yield Unreadable(" ".join(str(error).split())[:200])
        documents = _repaired(text)
    for document in documents:
        for server in _of_document(document):
            yield replace(server, words=tuple(_located(server.words, lines)))


def _repaired(text: str) -> list[Any]:
    """Return what can be read of a text that is no YAML: without its templates, and without the
    lines that cannot be parsed."""
    text = _TEMPLATE.sub(lambda match: _STANDS_FOR_TEMPLATE + "\n" * match[0].count("\n"), text)
    lines = _ONLY_TEMPLATES.sub("", text).splitlines()
    for _ in range(MAX_REPAIRED if len(text) <= MAX_REPAIRED_TEXT else 1):
        try:
            return parse_yaml("\n".join(lines), text_type=Word)
        except YamlSyntaxError as error:
            lines[min(error.line, len(lines)) - 1] = ""
        except ValueError:
            break
    return []


def _located(words: Iterable[Word], lines: Sequence[str]) -> Iterator[Word]:
    """Yield words, each with the line on which it is found: YAML tells the line at which a scalar
    begins, and may fold its lines."""
    begins = at = 0
    for word in words:
        begins, at = word.line, max(at, word.line) if word.line == begins else word.line
        end = min(at + MAX_BLOCK, len(lines) + 1)
        at = next((number for number in range(at, end) if word in lines[number - 1]), at)
        yield Word(word, at, word.quoted)


def _of_document(document: Any) -> Iterator[ServerCommand]:
    """Yield the servers of the mappings and texts in a document. Aliases are followed once."""
    visited: set[int] = set()
    waiting = [document]
    while waiting and len(visited) < MAX_NODES:
        node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, dict):
            yield from _of_mapping(node)
            values = (v for k, v in node.items() if k not in _WORDS or isinstance(v, dict))
            waiting += reversed(list(values))
        elif isinstance(node, list):
            started = list(servers(_words(node)))
            yield from started
            waiting += reversed([item for item in node if not started or isinstance(item, dict)])
        elif isinstance(node, Word) and "vllm" in node and re.search(r"\s", node):
            yield from of_script(node, node.line)


def _of_mapping(node: Mapping[Any, Any]) -> Iterator[ServerCommand]:
    variables = _variables(node.get("environment", node.get("env")))
    label = next((node[key] for key in _LABELS if isinstance(node.get(key), str)), "")
    image = _image(node)
    words = [word for key in _WORDS for word in _words(node.get(key))]
    config = node.get("vllmConfig", {} if {"modelURL", "repository"} <= node.keys() else None)
    if isinstance(config, dict):
        line = next((key.line for key in node if isinstance(key, Word)), 1)
        model = node.get("model")
        chart = {**(model if isinstance(model, dict) else {}), **node}
        settings = {option: chart[key] for key, option in _CHART.items() if chart.get(key)}
        settings |= {
            re.sub(r"(?<!^)([A-Z])", r"_\1", str(key)).lower(): config[key] for key in config
        }
        words += _words(config.get("extraArgs"))
        yield ServerCommand(tuple(words), line, variables, image, label, settings)
        return
    more = [word for key in node if _MORE_WORDS.fullmatch(str(key)) for word in _words(node[key])]
    has_image = isinstance(node.get("image"), str)  # in the values of a chart more may be elsewhere
    started = list(_of_image(image, words, variables)) if has_image or words else []
    if not started and more and more[0].startswith("-") and _is_vllm(node, image):
        started = [ServerCommand(tuple(more), more[0].line, variables, image, is_certain=False)]
    yield from (replace(server, label=label) for server in started)


def _is_vllm(node: Mapping[Any, Any], image: str) -> bool:
    """Return whether a mapping says ``engine: vllm``, ``backend: vllm``, or names such an image."""
    values = (value for key, value in node.items() if key not in _LABELS)
    return _IMAGE.search(image) is not None or any(
        isinstance(value, str) and value.lower() == "vllm" for value in values
    )


def _image(node: Mapping[Any, Any]) -> Word:
    """Return the image of a container, also one that is given as a repository and a tag."""
    image = node.get("image", node)
    if isinstance(image, Mapping):
        text = ":".join(str(image[key]) for key in ("repository", "tag") if image.get(key))
        return Word(text, getattr(image.get("repository"), "line", 1))
    return image if isinstance(image, Word) else Word("")


def _words(value: Any) -> list[Word]:
    if isinstance(value, Word):
        return split(value, value.line)
    words: list[Word] = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Word):
            words.append(Word(item, item.line, True))
        elif not isinstance(item, (dict, list, type(None))):
            words.append(Word(str(item), words[-1].line if words else 1))
    return words


def _variables(value: Any) -> dict[str, str]:
    """Return variables from a mapping, from texts ``NAME=value``, or from Kubernetes' list of name
    and value."""
    if isinstance(value, dict):
        return {str(name): literal(str(text)) for name, text in value.items()}
    variables = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, str) and "=" in entry:
            name, _, text = entry.partition("=")
            variables[name] = literal(text)
        elif isinstance(entry, dict) and "name" in entry:
            variables[str(entry["name"])] = literal(str(entry.get("value", UNSET)))
    return variables
