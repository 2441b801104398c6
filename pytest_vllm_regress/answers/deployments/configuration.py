"""The configuration of a deployment: a command line of ``vllm serve``, or a file that has one
(Dockerfile, compose, Kubernetes, Helm values)."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...util.documents import MAX_NODES, parse_json, parse_yaml
from ...util.files import expand_home, read_bounded
from ...util.validation import format_value
from .arguments import UNSET, literal, read_arguments

MAX_BYTES = 1024 * 1024
MAX_DEPLOYMENTS = 100
MAX_COMMAND = 64 * 1024
"""Characters of a command: ``shlex`` takes time with the square of a word's length."""
_MODULE = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAG = re.compile(r"(?:^|/)vllm/vllm-openai:v?(\d+(?:\.\d+)+(?:\.post\d+)?)(?=$|[\s@-])")
_IMAGE = re.compile(r"(?:^|[/-])vllm(?:[-/:@]|$)")
_ENGINES = ("docker", "podman", "nerdctl")
_FLAGS = re.compile(
    r"-[ditP]+|-q|--(?:detach|interactive|tty|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable|quiet|replace)"
)
"""Options of ``docker run`` that take no value."""
_KEYS = ("entrypoint", "command", "args", "extraArgs")
_ALLOWED = "a command line with `vllm serve` or `docker run`, a Dockerfile, or YAML: a compose file, a Kubernetes manifest, Helm values"


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Options of one ``vllm serve``, by their names with underscores, and variables of its process.

    ``complete``: whether an option that is not named has its default. It may not if a configuration
    file or a variable adds options.
    ``notes``: options that no release has. ``release``: the version in the tag of vLLM's own image;
    empty if there is none.
    """

    source: str
    options: Mapping[str, Any] = dataclasses.field(hash=False)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    complete: bool = True
    notes: tuple[str, ...] = ()
    release: str = ""


def read_deployments(text: str) -> tuple[Deployment, ...]:
    """Return what a command line, or the file of this name, starts.

    Raises ``UsageError`` if it starts no vLLM.
    """
    if not text.strip():
        raise UsageError(f"--serve is empty. Give {_ALLOWED}")
    path = expand_home(text)
    if " " in text.strip() and not os.path.exists(path):
        deployments = tuple(_bounded(_of_words(_split(_joined(text)), "--serve", {})))
    elif os.path.exists(path):
        deployments = tuple(_bounded(_of_file(path)))
    else:
        raise UsageError(f"--serve {format_value(text)}: no such file. Give {_ALLOWED}")
    if not deployments:
        raise UsageError(f"--serve {format_value(text)}: starts no vLLM. Allowed are {_ALLOWED}")
    return deployments


def _bounded(deployments: Iterator[Deployment]) -> Iterator[Deployment]:
    """Yield the deployments. Raises ``UsageError`` for more than ``MAX_DEPLOYMENTS``."""
    for number, deployment in enumerate(deployments):
        if number == MAX_DEPLOYMENTS:
            raise UsageError(
                f"{deployment.source}: starts more than {MAX_DEPLOYMENTS} servers; give a part of it"
            )
        yield deployment


def _of_file(path: Path) -> Iterator[Deployment]:
    text = read_bounded(path, MAX_BYTES, what="a deployment").decode("utf-8", "replace")
    if path.suffix in (".yaml", ".yml"):
        for document in _yaml_documents(text, path):
            yield from _of_document(document, str(path))
    elif re.search(r"^\s*FROM\s", text, re.MULTILINE | re.IGNORECASE):
        yield from _of_dockerfile(text, str(path))
    else:
        for line in _joined(text).splitlines():
            if "vllm" in line:
                yield from _of_words(_split(line), str(path), {})


def _yaml_documents(text: str, path: Path) -> list[Any]:
    try:
        return parse_yaml(text)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{path}: not valid YAML: {reason}. For a Helm chart give its values, or the output of `helm template`"
        ) from None


def _of_document(document: Any, source: str) -> Iterator[Deployment]:
    """Yield the deployments of the mappings in a document. Aliases are followed once."""
    visited: set[int] = set()
    waiting = [document]
    while waiting and len(visited) < MAX_NODES:
        node = waiting.pop()
        if id(node) in visited or not isinstance(node, (dict, list)):
            continue
        visited.add(id(node))
        if isinstance(node, dict):
            yield from _of_mapping(node, source)
        waiting += reversed(list(node.values()) if isinstance(node, dict) else node)


def _of_mapping(node: Mapping[Any, Any], source: str) -> Iterator[Deployment]:
    variables = _variables(node.get("environment", node.get("env")))
    words = [word for key in _KEYS for word in _words(node.get(key))]
    image = node.get("image")
    of_vllm = isinstance(image, str) and _IMAGE.search(image) is not None
    label = next(
        (str(node[key]) for key in ("name", "container_name") if isinstance(node.get(key), str)), ""
    )
    place = f"{source} ({label})" if label else source
    config = node.get("vllmConfig")
    if isinstance(config, dict):
        options = {
            re.sub(r"(?<!^)([A-Z])", r"_\1", str(key)).lower(): value
            for key, value in config.items()
        }
        more = read_arguments(_words(config.get("extraArgs")))
        yield Deployment(place, {**options, **more.options}, variables, notes=more.notes)
    elif words or of_vllm:
        deployments = tuple(_of_words(words, place, variables))
        if not deployments and of_vllm:
            deployments = (_deployment(words, place, variables),)
        yield from _in_image(deployments, image)


def _of_dockerfile(text: str, source: str) -> Iterator[Deployment]:
    variables: dict[str, str] = {}
    base, entrypoint, command = "", [], []  # type: str, list[str], list[str]
    for line in _joined(text).splitlines():
        name, _, rest = line.strip().partition(" ")
        match name.upper():
            case "FROM":
                base, entrypoint, command = rest, [], []
            case "ENV":
                variables |= _variables(
                    _split(rest) if "=" in rest else ["=".join(rest.split(None, 1))]
                )
            case "ENTRYPOINT":
                entrypoint, command = _exec_form(rest), []
            case "CMD":
                command = _exec_form(rest)
    deployments = tuple(_of_words([*entrypoint, *command], source, variables))
    if (
        not deployments
        and not entrypoint
        and _IMAGE.search(base.split()[0] if base.split() else "")
    ):
        deployments = (_deployment(command, source, variables),)
    yield from _in_image(deployments, base)


def _exec_form(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        try:
            return [str(word) for word in parse_json(text)]
        except ValueError:
            return []
    return _split(text)


def _of_words(
    words: Sequence[str], source: str, variables: Mapping[str, str]
) -> Iterator[Deployment]:
    """Yield the deployments that a command starts, also through a shell."""
    assigned = dict(variables)
    for index, word in enumerate(words):
        if "=" in word and _VARIABLE.fullmatch(word.partition("=")[0]):
            assigned[word.partition("=")[0]] = word.partition("=")[2]
        elif (" " in word or "\n" in word) and "vllm" in word:
            for line in _joined(word).splitlines():
                yield from _of_words(_split(line), source, assigned)
        elif (
            word.rpartition("/")[2] == "vllm" and "serve" in words[index + 1 : index + 2]
        ) or _MODULE.fullmatch(word):
            arguments = words[index + (1 if _MODULE.fullmatch(word) else 2) :]
            yield _deployment(_to_end(arguments), source, assigned)
            return
        elif word.rpartition("/")[2] in _ENGINES and "run" in words[index + 1 : index + 3]:
            command = _to_end(words[words.index("run", index) + 1 :])
            deployments = tuple(_of_container(command, source, assigned))
            yield from deployments
            if deployments:
                return


def _of_container(
    words: Sequence[str], source: str, variables: Mapping[str, str]
) -> Iterator[Deployment]:
    """Yield the deployments of the words after ``docker run``: options, an image, and its
    arguments."""
    assigned = dict(variables)
    entrypoint: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if not equals and not _FLAGS.fullmatch(option):
            at += 1
            value = words[at] if at < len(words) else ""
        if option in ("-e", "--env"):
            name, equals, text = value.partition("=")
            assigned[name] = literal(text) if equals else UNSET
        elif option == "--entrypoint":
            entrypoint = [value]
        at += 1
    if at >= len(words):
        return
    image, arguments = words[at], words[at + 1 :]
    deployments = tuple(_of_words([*entrypoint, *arguments], source, assigned))
    is_server = _IMAGE.search(image) is not None and (
        "vllm-openai" in image or not arguments or arguments[0].startswith("-")
    )
    if not deployments and not entrypoint and is_server:
        deployments = (_deployment(arguments, source, assigned),)
    yield from _in_image(deployments, image)


def _in_image(deployments: Iterable[Deployment], image: object) -> Iterator[Deployment]:
    """Yield the deployments, each with the vLLM version in the tag of its image."""
    match = _TAG.search(image) if isinstance(image, str) else None
    for deployment in deployments:
        yield dataclasses.replace(deployment, release=match[1]) if match else deployment


def _to_end(words: Sequence[str]) -> Sequence[str]:
    """Return the words before the end of a command."""
    return words[
        : next(
            (at for at, word in enumerate(words) if word in ("&&", ";", "|", "||", "&")), len(words)
        )
    ]


def _joined(text: str) -> str:
    """Return ``text`` with continued lines as one."""
    return re.sub(r"\\\r?\n", " ", text)


def _deployment(arguments: Sequence[str], source: str, variables: Mapping[str, str]) -> Deployment:
    read = read_arguments(arguments)
    open_ended = any(
        re.fullmatch(r"\"?\$[\w@*{].*", word) for word in arguments if not word.startswith("-")
    )
    complete = "config" not in read.options and not open_ended
    return Deployment(source, read.options, dict(variables), complete, read.notes)


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return _split(value)
    return [str(word) for word in value if word is not None] if isinstance(value, list) else []


def _variables(value: Any) -> dict[str, str]:
    """Return variables from a mapping, from texts ``NAME=value``, or from Kubernetes' list of name
    and value."""
    if isinstance(value, dict):
        return {str(name): literal(str(text)) for name, text in value.items()}
    variables = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, str) and "=" in entry:
            variables[entry.partition("=")[0]] = literal(entry.partition("=")[2])
        elif isinstance(entry, dict) and "name" in entry:
            variables[str(entry["name"])] = literal(str(entry.get("value", UNSET)))
    return variables


def _split(text: str) -> list[str]:
    if len(text) > MAX_COMMAND:
        raise UsageError(
            f"--serve: a command of more than {MAX_COMMAND} characters, which is the limit: {format_value(text[:100])}"
        )
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()
