"""Cells as values: what another machine is asked to run, and what it answers. Plain JSON (``cell_request_schema.json``,
``cell_outcome_schema.json``), so that anything can carry it: a file, a pipe, Ray."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from .._version import __version__
from ..cases import results
from ..cases.results import RunResult
from ..errors import UsageError
from ..util.documents import parse_json
from ..util.sizes import GIB
from ..util.validation import problems

SCHEMA_VERSION = 1
MAX_LOG = 256 * 1024
"""Characters of output that travel: its end."""


class State(StrEnum):
    """What came of cells."""

    FINISHED = "finished"
    """They have their verdicts."""
    UNBUILT = "unbuilt"
    """Their environment cannot be built, on no machine."""
    LOST = "lost"
    """Their machine failed: that says nothing about them."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What cells are given room for while they run: ``memory_bytes`` for the engines of one environment, ``disk_bytes`` free in the cache's place."""

    cores: float = 2
    gpus: int = 0
    memory_bytes: int = 6 * GIB
    disk_bytes: int = GIB


@dataclasses.dataclass(frozen=True)
class CellRequest:
    """Cases to run in one environment.

    ``recipes`` is the environments.toml in which ``environment`` is a name, ``locks`` its locks by file name; both are empty for an
    interpreter's path. ``files``: the cases' code by path below the directory of cases. ``deadline_s``: no cell takes longer, nor the build.
    """

    environment: str
    recipes: str = ""
    locks: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    cases: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    device: str = ""
    pytest_args: tuple[str, ...] = ()
    needs: Needs = Needs()
    deadline_s: float = 3600.0
    tool_version: str = __version__

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps({"schema": SCHEMA_VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_text(cls, text: str | bytes) -> CellRequest:
        """Raises ``UsageError`` for anything that ``to_text`` does not write, and for another version's."""
        plain = _checked(text, "a request for cells", "cell_request_schema.json")
        if plain["tool_version"] != __version__:
            raise UsageError(
                f"the request is of vllm-regress {plain['tool_version']}, and here is {__version__}: install the same one on every machine"
            )
        return cls(
            **plain
            | {
                "cases": tuple(plain["cases"]),
                "pytest_args": tuple(plain["pytest_args"]),
                "needs": Needs(**plain["needs"]),
            }
        )


@dataclasses.dataclass(frozen=True)
class CellOutcome:
    """What came of a request, or of the first of its cells (``last`` is False). ``why``: of what is not finished. ``log``: the end of the output."""

    state: State = State.FINISHED
    run: RunResult = dataclasses.field(default_factory=RunResult)
    last: bool = True
    why: str = ""
    node: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    log: str = ""

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps(
            {
                "schema": SCHEMA_VERSION,
                "state": self.state.value,
                "run": self.run.to_json(),
                "last": self.last,
                "why": self.why[: results.MAX_DOSSIER],
                "node": dict(self.node),
                "log": self.log[-MAX_LOG:],
            }
        )

    @classmethod
    def from_text(cls, text: str | bytes) -> CellOutcome:
        """Raises ``UsageError`` for anything that ``to_text`` does not write. Secrets in it are hidden, whoever wrote it."""
        plain = _checked(text, "an outcome of cells", "cell_outcome_schema.json")
        hidden = results.hide_secrets(plain)
        run = results.from_document(plain["run"], "the outcome of cells")
        return cls(State(plain["state"]), run, plain["last"], hidden["why"], hidden["node"], hidden["log"])


def _checked(text: str | bytes, what: str, schema: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except ValueError as wrong:
        raise UsageError(f"{what}: not valid JSON: {wrong}") from None
    given = document.get("schema") if isinstance(document, dict) else None
    if given != SCHEMA_VERSION:
        raise UsageError(f"{what}: schema = {given!r}: this vllm-regress reads {SCHEMA_VERSION}")
    if found := problems(document, schema):
        raise UsageError("\n".join(f"{what}: {line}" for line in found))
    return {name: value for name, value in document.items() if name != "schema"}
