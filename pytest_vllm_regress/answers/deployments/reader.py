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
from itertools import islice

from .dockerfiles import of_dockerfile
from .file_names import is_dockerfile
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
from .here_documents import of_shell
from .manifests import of_document, of_yaml
from .programs import manifests_in, of_notebook, of_python, texts_of_notebook
from .shell import (
    is_image,
    of_script,
    servers,
)
from .shell_words import MAX_BLOCKS, MAX_COMMAND, commands, split, without_blocks
from .translations import to_shell
from .units import of_unit

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
_NEW_TAG = re.compile(
    r"name:[ \t]*[\"']?(\S*vllm-openai[\w-]*)[\"']?[ \t]*\n(?:[ \t]*newName:.*\n)?[ \t]*newTag:[ \t]*[\"']?([\w.-]+)"
)
"""An image to which kustomize gives another tag."""
_FROM = re.compile(r"(?i)\A(?:[ \t]*(?:#[^\n]*|ARG[ \t][^\n]*)?\n)*[ \t]*FROM[ \t]")
_PROSE = (".md", ".mdx", ".markdown")
_FENCE = re.compile(
    r"(?m)^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?P<language>\w*)[^\n]*\n(?P<body>(?:(?![ \t]*(?P=fence)).*\n)*)[^\n]*"
)
_WRAPPED = re.compile(r"([^\\\s])[ \t]*\n(?=[ \t]*--?[A-Za-z])")
"""A line of a command that continues on the next line, without a backslash."""
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
    """Return whether a file is a document, such as Markdown, whose code is in blocks."""
    return file.lower().endswith(_PROSE)


def code_lines(text: str) -> dict[int, str]:
    """Return the lines of a document that are in fenced blocks, by number."""
    lines: dict[int, str] = {}
    for match in islice(_FENCE.finditer(text), MAX_BLOCKS):
        first = text.count("\n", 0, match.start("body")) + 1
        lines |= dict(enumerate(match["body"].split("\n"), first))
    return lines


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
        found = list(of_notebook(text)) if starts else []
        found = found or _of_manifests(text, is_notebook=True)
        yield from found
        for cell in texts_of_notebook(text) if starts and not found else ():
            yield from _of_examples(cell)
    elif inner.endswith(_HCL):
        yield from of_document(parse_hcl(text)) if starts else ()
    elif inner.endswith(".py"):
        program = list(of_python(text)) if starts else []
        yield from program
        if not any(isinstance(item, ServerCommand) for item in program):
            yield from _of_manifests(text)
    elif is_dockerfile(inner) or (not inner.endswith((".sh", ".bash")) and _FROM.search(text)):
        yield from of_dockerfile(without_blocks(text))
    elif starts and inner.endswith(_PROSE) and _FENCE.search(text):
        yield from _of_prose(text)
    elif starts:
        text = to_shell(without_blocks(text), inner)
        if inner.endswith(_UNITS):
            yield from of_unit(text)
        else:
            yield from of_shell(text)


def _of_manifests(text: str, *, is_notebook: bool = False) -> list[ServerCommand | Unreadable]:
    """Return the servers of manifests in strings."""
    return [item for part in manifests_in(text, is_notebook=is_notebook) for item in of_yaml(part)]


def _of_examples(text: str) -> Iterator[ServerCommand]:
    """Yield the servers in the fenced blocks of a document."""
    for match in islice(_FENCE.finditer(f"{text}\n"), MAX_BLOCKS):
        body = "\n" * text.count("\n", 0, match.start("body")) + match["body"]
        name = _NAMES_OF_LANGUAGES.get(match["language"].lower(), "x.sh")
        if name == "x.sh":
            body = _WRAPPED.sub(r"\1 \\\n", body)
        yield from (item for item in _servers_in(body, name) if isinstance(item, ServerCommand))


def _of_prose(text: str) -> Iterator[ServerCommand]:
    """Yield the servers in the examples of a document: in its fenced blocks, or else in its indented
    ones."""
    found = list(_of_examples(text))
    indented = (line if line.startswith(("    ", "\t")) else "" for line in text.split("\n"))
    yield from found or of_script("\n".join(indented))
