"""Servers of images that Dockerfiles build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from .findings import ServerCommand, Word, literal
from .here_documents import HERE_DOCUMENT
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
from .shell_words import MAX_BLOCKS, expanded, split
from .workers import is_worker

_INSTRUCTION = re.compile(r"(?m)^[ \t]*([A-Za-z]+)[ \t]+((?:[^\\\n]+|\\[ \t\r]*\n|\\.)*)")
_STRING = re.compile(r'"((?:[^"\\\n]|\\[ \t\r]*\n|\\.)*)"')
_RUNS_PROGRAM = re.compile(
    r"(?!.*(?:ray|bench|test|client|router|proxy|eval|train))(?:.*\.(?:py|sh)|\w+(?:\.\w+)+)"
)
"""A script or module, except those in vLLM's image that are not its server."""
_INSTALLS_VLLM = re.compile(
    r"(?:pip3?|uv)[^\n]*\binstall(?:[^\n\\]|\\\s*\n)*?[\s\"']vllm\b(?![-/\w])"
)
_PRINTED_SCRIPT = re.compile(
    r"(?:echo|printf)[ \t]+(?:-e[ \t]+)?(?:'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\")[ \t]*>+[ \t]*\S+",
    re.DOTALL,
)
"""A script that a step of the build writes."""
_STARTS_ALONE = re.compile(r"(?:.*/)?(?:start|serve|launch|run|entrypoint)[\w-]*")


def of_dockerfile(text: str) -> Iterator[ServerCommand]:
    """Yield the servers of the last image, and those that steps of the build start."""
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
        is_bare = is_own_image(base) or is_worker(base)
        started = list(of_image(base, command, variables)) if command or is_bare else []
        if not started and is_worker(base):  # which runs a program of its own
            started = list(of_image(base, [], variables))
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

    text = HERE_DOCUMENT.sub(take, text) if "<<" in text else text
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
