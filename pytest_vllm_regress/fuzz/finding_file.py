"""Files of findings, which ``vllm-regress replay`` reads: about parsers, the API, pairs of
configurations and the life of a server."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import write_atomically
from ..util.validation import problems as schema_problems

FORMAT = 1
MAX_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Upstream:
    """What upstream knows of a finding. ``words``: what was searched for.

    ``reports``: reports of it; empty if none was found.
    """

    words: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()


class FindingFile(abc.ABC):
    """A finding as a file. Subclasses are dataclasses that have these fields among theirs.

    Attributes:
        environment: the environment that showed it.
        versions: its packages.
        releases: answer of a replay by version of vLLM.
    """

    environment: str
    versions: Mapping[str, str]
    seed: int
    releases: Mapping[str, str]
    upstream: Upstream

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """File name."""

    @abc.abstractmethod
    def details(self) -> dict[str, Any]:
        """Return the part of the document that only findings of this kind have."""

    def to_json(self) -> dict[str, Any]:
        """Return the file's content as a JSON document."""
        return {
            "format": FORMAT,
            "command": f"vllm-regress replay {self.name}",
            "environment": self.environment,
            "versions": dict(self.versions),
            "seed": self.seed,
            **self.details(),
            "releases": dict(self.releases),
            "upstream": dataclasses.asdict(self.upstream),
        }

    def text(self) -> str:
        """Return the file's content as text."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def save(self, folder: Path) -> Path:
        """Write the file and return its path."""
        path = folder / self.name
        write_atomically(path, self.text())
        return path


def hyphenated(text: str) -> str:
    """Return text as a part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def read(path: Path, hunter: str, schema: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the document of a file, and those of its fields that every finding has as arguments of
    its class.

    Raises ``UsageError`` that lists what does not match the schema.
    """
    document = load_json(path, MAX_BYTES, what=f"a finding of `vllm-regress fuzz {hunter}`")
    if errors := schema_problems(document, schema):
        raise UsageError("\n".join(f"{path}: {error}" for error in errors))
    upstream = Upstream(**{name: tuple(lines) for name, lines in document["upstream"].items()})
    fields = {name: document[name] for name in ("environment", "versions", "seed", "releases")}
    return document, {**fields, "upstream": upstream}
