"""What a file says about servers of vLLM: their command lines, images and variables, names of
variables, routes and metrics, and releases that it installs. Each has its line.

One reader for shell scripts, Dockerfiles, compose files, Kubernetes manifests, Helm values and
templates, workflows, catalogues, Terraform, units of systemd and supervisord, Python and notebooks. ``audit
--serve`` and ``uses`` both take its findings, so that they cannot disagree about a file. Nothing is
run. What starts a server is found in commands (``shell``), in mappings (``manifests``) and in source
(``programs``); here the form of a text is recognized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from textwrap import dedent

from .findings import (
    DEFAULT_OF_VARIABLE,
    UNSET,
    DeploymentFinding,
    Mention,
    Pin,
    ServerCommand,
    Unreadable,
    Word,
    literal,
    release_of_image,
)
from .hcl import parse_hcl
from .manifests import of_document, of_yaml
from .programs import of_notebook, of_python
from .shell import (
    RUNS_SCRIPT,
    is_image,
    is_own_image,
    names_model,
    of_image,
    of_script,
    servers,
    starts_elsewhere,
)
from .shell_words import MAX_BLOCKS, MAX_COMMAND, commands, expanded, split, without_blocks
from .translations import to_shell
from .units import is_unit, of_unit

__all__ = [
    "MAX_COMMAND",
    "UNSET",
    "DeploymentFinding",
    "Mention",
    "Pin",
    "ServerCommand",
    "Unreadable",
    "Word",
    "code_lines",
    "commands",
    "is_dockerfile",
    "is_prose",
    "literal",
    "names_in",
    "read",
    "servers",
    "split",
]
_LINE = 100_000
_TERRAFORM_BLOCK = re.compile(r"(?m)^[ \t]*%\{[^{}\n]*\}[ \t]*$")
_SAYS = re.compile(r"\s*@?(?:echo|printf)\b[^|>`]*\Z")
"""A line of a script that only tells the user something."""
_YAML = re.compile(r"(?m)^(?:apiVersion|kind|services|\w+):")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_TEMPLATES = (
    ".tftpl",
    ".j2",
    ".jinja",
    ".jinja2",
    ".tmpl",
    ".template",
    ".example",
    ".sample",
    ".tpl",
)
_HEREDOC = re.compile(
    r"(?P<start><<-?[ \t]*(?P<q>['\"]?)(?P<end>\w+)(?P=q)[^\n]*\n)(?P<body>(?:(?![ \t]*(?P=end)[ \t]*$).*\n)*)",
    re.MULTILINE,
)
_PRINTED = re.compile(r"[ \t]*cat[ \t]*\Z")
"""What is before a text for people; elsewhere it is written to a file, or run."""
_RUN_BY_PYTHON = re.compile(r"(?i:python)[\w.]*[^\n|;&]*\Z")
_NEW_TAG = re.compile(
    r"name:[ \t]*[\"']?(\S*vllm-openai[\w-]*)[\"']?[ \t]*\n(?:[ \t]*newName:.*\n)?[ \t]*newTag:[ \t]*[\"']?([\w.-]+)"
)
"""An image to which kustomize gives another tag."""
_FROM = re.compile(r"(?i)\A(?:[ \t]*(?:#[^\n]*|ARG[ \t][^\n]*)?\n)*[ \t]*FROM[ \t]")
_INSTRUCTION = re.compile(r"(?m)^[ \t]*([A-Za-z]+)[ \t]+((?:[^\\\n]+|\\[ \t\r]*\n|\\.)*)")
_STRING = re.compile(r'"((?:[^"\\\n]|\\[ \t\r]*\n|\\.)*)"')

_PROSE = (".md", ".mdx", ".markdown")
_FENCE = re.compile(
    r"(?m)^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?P<language>\w*)[^\n]*\n(?P<body>(?:(?![ \t]*(?P=fence)).*\n)*)[^\n]*"
)
_NAMES_OF_LANGUAGES = {
    "python": "x.py",
    "py": "x.py",
    "yaml": "x.yaml",
    "yml": "x.yaml",
    "dockerfile": "Dockerfile",
    "hcl": "x.tf",
    "nix": "x.nix",
    "powershell": "x.ps1",
    "ini": "x.service",
}
_HCL = (".tf", ".hcl", ".nomad", ".tofu")
_UNITS = (".service", ".conf", ".ini", ".container")

_STARTS = re.compile(r"\bserve\b|\bapi_server\b|\bvllm-openai\b|docker|podman|nerdctl|(?i:vllm)")
"""What a script or JSON has that starts a server. Others are not split into words, which takes time:
logs, dashboards, records."""
_IMAGE_IN_TEXT = re.compile(
    r"(?<![\w.${}:/@-])[\w.${}:/@-]{0,300}vllm[\w.-]{0,100}:[\w.${}:-]{1,200}"
)
_NAMES_IMAGE = re.compile(r"(?i)image|^\s*FROM\b")
_RELEASE = r"(0\.\d+\.\d+(?:\.?post\d+)?)"
_OF_SOURCE = re.compile(
    rf"\buvx\b.*\bvllm@v?{_RELEASE}|\bvllm-{_RELEASE}(?:%2B|\+)?[\w.]*-cp\d|vllm-project/vllm(?:\.git)?@v{_RELEASE}"
    rf"|clone\b.*(?:-b|--branch)[ =]v{_RELEASE}\b.*vllm-project/vllm|\bvllm[\w-]*[_-]v?{_RELEASE}\.sif"
    rf"|\bmodule\s+load\b.*\bvllm/v?{_RELEASE}"
)
"""Wheels, tags of the repository, images of Apptainer, and modules of a cluster."""
_VERSION = re.compile(
    r"""(?i)\bvllm_?version["']?\s*(?:[:=]|:-)\s*["']?v?(0\.\d+\.\d+(?:\.post\d+)?)(?![\w.])"""
)
"""A variable or a key whose value is vLLM's version."""
_INLINE_METADATA = re.compile(r"(?m)^# /// script$([\s\S]*?)^# ///$")
_REQUIRED = re.compile(r"""^\s*(?:-\s+)?["']?vllm(?:\[[\w,-]*\])?\s*[=<>~!]=?""")
"""A line with nothing but a requirement, of an installation over several lines."""

# Names in any text
_NAMES = {
    # Not one that is only read or removed: $VLLM_X, ${VLLM_X:-1}, unset VLLM_X.
    "environment": re.compile(r"(?<!\$)(?<!\$\{)(?<!\bunset )\bVLLM_[A-Z0-9_]+\b"),
    "metric": re.compile(r"\bvllm:[a-z][a-z0-9_]+"),
    "route": re.compile(
        r"(?:https?://[^/\s\"']+|\{[^{}]*\}|\$\{?\w+\}?|:\d{2,5}|^)(/[\w/.-]+)", re.MULTILINE
    ),
}
_INSTALLED = re.compile(
    r"""\bvllm(?:\[[\w,-]*\])?\s*((?:===?|[<>~!]=|[<>])\s*[\w.*+!]+(?:\s*,\s*(?:[=<>~!]=|[<>])\s*[\w.*]+)*)"""
)


def read(text: str, name: str) -> Iterator[DeploymentFinding]:
    """Yield what a text says; the name of its file tells its format."""
    text = text.replace("\r\n", "\n") + "\n"  # the last line may end with a backslash
    yield from _servers_in(text, name)
    for match in _NEW_TAG.finditer(text):
        if release := release_of_image(f"{match[1]}:{match[2]}"):
            yield Pin(f"=={release}", text.count("\n", 0, match.end()) + 1)
    is_python = name.endswith(".ipynb")
    if name.endswith(".py"):  # elsewhere comments explain
        for block in _INLINE_METADATA.findall(text):
            yield from (Pin(found.replace(" ", ""), 1) for found in _INSTALLED.findall(block))
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line[:_LINE])
        is_printed = _SAYS.match(line) is not None
        yield from (
            Mention(kind, found, number)
            for kind, found in names_in(line)
            if kind == "environment" or not is_printed
        )
        if "vllm" not in line.lower():
            continue
        for image in _IMAGE_IN_TEXT.findall(line):
            if release := release_of_image(image):
                yield Pin(f"=={release}", number)
            elif _NAMES_IMAGE.search(line) and is_image(image) and not re.search("[${]", image):
                yield Pin("", number)
        for release in _OF_SOURCE.findall(line):
            yield Pin(f"=={next(filter(None, release))}", number)
        for match in _VERSION.finditer(DEFAULT_OF_VARIABLE.sub(r"\1", line)):
            yield Pin(f"=={match[1]}", number)
        if name.endswith(".py"):
            continue  # ``programs`` finds what is no docstring
        if re.search(r"install|\bpip\b|\buvx? ", line) or is_python or _REQUIRED.match(line):
            for specifier in _INSTALLED.findall(line):
                yield Pin(specifier.replace(" ", ""), number)


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds and names of what a text mentions; see ``Mention``."""
    for kind, pattern in _NAMES.items():
        for name in set(pattern.findall(text)):
            yield kind, name


def is_prose(file: str) -> bool:
    """Return whether a file is a document, with code in blocks."""
    return file.lower().endswith(_PROSE)


def code_lines(text: str) -> dict[int, str]:
    """Return the lines of a document that are in fenced blocks, by number."""
    lines: dict[int, str] = {}
    for match in islice(_FENCE.finditer(text), MAX_BLOCKS):
        first = text.count("\n", 0, match.start("body")) + 1
        lines |= dict(enumerate(match["body"].split("\n"), first))
    return lines


def is_dockerfile(file: str) -> bool:
    name = file.rpartition("/")[2].lower()
    return name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")


def _servers_in(text: str, name: str) -> Iterator[ServerCommand | Pin | Unreadable]:
    starts = _STARTS.search(text) is not None
    inner = name
    if name.endswith(".tftpl"):
        text = _TERRAFORM_BLOCK.sub("", text)
    while inner.endswith(_TEMPLATES):
        inner = inner.rpartition(".")[0]
    is_yaml = inner.endswith((".yaml", ".yml")) or (
        name.endswith(_TEMPLATES) and "." not in inner.rpartition("/")[2] and _YAML.search(text)
    )
    if is_yaml or (starts and inner.endswith(".json")):
        yield from of_yaml(text)
    elif inner.endswith(".ipynb") and text.lstrip().startswith("{"):  # not one of its cells
        yield from of_notebook(text) if starts else ()
    elif inner.endswith(_HCL):
        yield from of_document(parse_hcl(text)) if starts else ()
    elif inner.endswith(".py"):
        yield from of_python(text) if starts else ()
    elif is_dockerfile(inner) or (not inner.endswith((".sh", ".bash")) and _FROM.search(text)):
        yield from _of_dockerfile(without_blocks(text))
    elif starts and inner.endswith(_PROSE) and _FENCE.search(text):
        yield from _of_prose(text)
    elif starts:
        text = to_shell(without_blocks(text), inner)
        if inner.endswith(_UNITS):
            yield from of_unit(text)
        else:
            yield from _of_shell(text)


def _of_prose(text: str) -> Iterator[ServerCommand]:
    """Yield the servers in the examples of a document: in its fenced blocks, or else in its indented
    ones."""
    found = []
    for match in islice(_FENCE.finditer(text), MAX_BLOCKS):
        body = "\n" * text.count("\n", 0, match.start("body")) + match["body"]
        name = _NAMES_OF_LANGUAGES.get(match["language"].lower(), "x.sh")
        found += [item for item in _servers_in(body, name) if isinstance(item, ServerCommand)]
    indented = (line if line.startswith(("    ", "\t")) else "" for line in text.split("\n"))
    yield from found or of_script("\n".join(indented))


def _of_shell(text: str) -> Iterator[ServerCommand | Unreadable]:
    """Yield the servers of a script, and of the manifests that it writes or applies."""
    manifests: list[str] = []
    units: list[str] = []
    programs: list[str] = []

    def take(match: re.Match[str]) -> str:
        body = match["body"]
        is_printed = _PRINTED.search(text, text.rfind("\n", 0, match.start()) + 1, match.start())
        if is_printed and not re.search(r"[>|]", match["start"]):
            return match["start"] + "\n" * body.count("\n")
        if _RUN_BY_PYTHON.search(text, text.rfind("\n", 0, match.start()) + 1, match.start()):
            programs.append("\n" * text.count("\n", 0, match.start("body")) + body)
            return match["start"] + "\n" * body.count("\n")
        if is_unit(body):
            units.append("\n" * text.count("\n", 0, match.start("body")) + dedent(body))
            return match["start"] + "\n" * body.count("\n")
        if not re.search(r"(?m)^\s*(?:- )?(?:kind|services|containers|image|run):", body):
            return match[0]
        lines = text.count("\n", 0, match.start("body"))
        manifests.append("\n" * lines + body)
        return match["start"] + "\n" * body.count("\n")

    script = _HEREDOC.sub(take, text) if "<<" in text else text
    yield from of_script(script)
    for unit in units[:MAX_BLOCKS]:
        yield from of_unit(unit)
    for program in programs[:MAX_BLOCKS]:
        yield from (f for f in of_python(program) if isinstance(f, ServerCommand))
    for manifest in manifests[:MAX_BLOCKS]:
        yield from (found for found in of_yaml(manifest) if isinstance(found, ServerCommand))


# Dockerfiles

_RUNS_PROGRAM = re.compile(
    r"(?!.*(?:ray|bench|test|client|router|proxy|eval|train))(?:.*\.(?:py|sh)|\w+(?:\.\w+)+)"
)
"""A script or module, but for what runs in vLLM's image and is no server."""
_INSTALLS_VLLM = re.compile(
    r"(?:pip3?|uv)[^\n]*\binstall(?:[^\n\\]|\\\s*\n)*?[\s\"']vllm\b(?![-/\w])"
)
_PRINTED_SCRIPT = re.compile(
    r"(?:echo|printf)[ \t]+(?:-e[ \t]+)?(?:'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\")[ \t]*>+[ \t]*\S+",
    re.DOTALL,
)
"""A script that a step of the build writes."""
_STARTS_ALONE = re.compile(r"(?:.*/)?(?:start|serve|launch|run|entrypoint)[\w-]*")


def _of_dockerfile(text: str) -> Iterator[ServerCommand]:
    variables: dict[str, str] = {}
    arguments: dict[str, Word | list[Word] | None] = {}
    base, command = Word(""), list[Word]()
    entrypoint: list[Word] | None = None
    stages: dict[str, tuple[Word, list[Word] | None, list[Word]]] = {}
    stage = ""
    line, at = 1, 0
    text, scripts = _without_scripts(text)
    has_vllm = _INSTALLS_VLLM.search(text) is not None
    for match in _INSTRUCTION.finditer(text):
        line, at = line + text.count("\n", at, match.start()), match.start()
        name, rest = match[1].upper(), match[2]
        words = _exec_form(rest, line) if rest.startswith("[") else split(rest, line)
        if name == "FROM":
            images = [word for word in words if not word.startswith("--")]
            base = expanded(images[0], arguments)[0] if images else base
            base, entrypoint, command = stages.get(base.lower(), (base, None, []))
            stage = images[2].lower() if len(images) > 2 else ""  # FROM image AS stage
        elif name in ("ENV", "ARG"):
            if "=" not in rest:
                words = [Word("=".join(rest.split(None, 1)), line)]
            assigned = dict(word.split("=", 1) for word in words if "=" in word)
            for key, value in assigned.items():
                arguments[key] = expanded(Word(value, line, quoted=True), arguments)[0]
            if name == "ENV":
                variables |= {key: literal(value) for key, value in assigned.items()}
        elif name == "ENTRYPOINT":
            entrypoint, command = words, []
        elif name == "CMD":
            command = words
        else:  # a step of the build, or a line of a script in it
            for server in of_script(match[0], line):
                yield replace(server, at_build=True)
        stages[stage] = base, entrypoint, command
    written = [s for script in scripts for s in of_script(script, variables=variables)]
    if written and not any(servers([*(entrypoint or []), *command], variables)):
        yield from (replace(server, image=str(base)) for server in written)
    elif entrypoint is None:
        # Other images than vLLM's own may start anything.
        started = list(of_image(base, command, variables)) if command or is_own_image(base) else []
        if not started and has_vllm and starts_elsewhere(command, is_vllm=True):
            started = [ServerCommand((), line, variables, is_certain=False, complete=False)]
        for server in started:
            yield replace(server, complete=server.complete and bool(server.words))
    else:
        words = [*entrypoint, *command]
        started = list(servers(words, variables))
        programs = [w for w in words if not RUNS_SCRIPT.fullmatch(w)][:1]
        is_script = starts_elsewhere(programs, is_image(base) or has_vllm) or (
            is_own_image(base) and any(map(_STARTS_ALONE.fullmatch, programs))
        )
        if is_own_image(base) and not is_script:  # whatever it runs, the image serves
            is_script = any(map(_RUNS_PROGRAM.fullmatch, programs))
        if not started and is_script:
            started = [ServerCommand((), line, variables, is_certain=False, complete=False)]
        for server in started:
            # Without a model here, it comes with other arguments when the container is run.
            is_open = any(word.endswith(".sh") for word in entrypoint)
            complete = server.complete and names_model(server.words) and not is_open
            yield replace(server, image=str(base), complete=complete)


def _without_scripts(text: str) -> tuple[str, list[str]]:
    """Return a Dockerfile without the files that it writes with ``COPY <<EOF``, and these and those
    that a step prints, each with as many lines before it as there are in the Dockerfile."""
    scripts: list[str] = []

    def take(match: re.Match[str]) -> str:
        before = text.rfind("\n", 0, match.start()) + 1
        if not re.match(r"(?i)\s*(?:COPY|ADD)\b", text[before : match.start()]):
            return match[0]
        scripts.append("\n" * text.count("\n", 0, match.start("body")) + match["body"])
        return "\n" * match[0].count("\n")

    text = _HEREDOC.sub(take, text) if "<<" in text else text
    for match in islice(_PRINTED_SCRIPT.finditer(text), MAX_BLOCKS):
        body = match["single"] or match["double"] or ""
        if "\\n" in body and "vllm" in body:
            body = re.sub(r"\\n(?:\\[ \t]*\n)?", "\n", body).replace("\\\\", "\\")
            scripts.append("\n" * text.count("\n", 0, match.start()) + body)
    return text, scripts


def _exec_form(text: str, line: int) -> list[Word]:
    return [
        Word(
            re.sub(r"\\(?:[ \t\r]*\n|(.))", r"\1", match[1]),
            line + text.count("\n", 0, match.start()),
            True,
        )
        for match in islice(_STRING.finditer(text), 2000)
    ]
