"""Cases for tests: a valid ``case.toml`` in which a test sets only what it is about."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_vllm_regress.cases.loading import CASE_FILE, load_all_cases, load_case
from pytest_vllm_regress.cases.model import Case
from tests.helpers import ROOT


@functools.cache
def project_cases() -> tuple[Case, ...]:
    """Return this project's cases.

    They are loaded once in each process, because many test modules need them when they are
    collected.
    """
    return tuple(load_all_cases(ROOT / "cases"))


@dataclasses.dataclass(frozen=True)
class CaseFile:
    """Content of a case file. ``affected``: versions of vLLM, or of several packages; ``omits``
    adds a ``[control]``.

    ``old`` and ``new`` are the evidence environments with and without the failure. Additional
    lines: ``keys`` at the top, ``symptom`` and ``control`` in these tables, ``tables`` at the end.
    """

    id: str = "demo"
    title: str = "one result"
    family: str = "wrong-result-count"
    upstream: Sequence[str] = ("https://example.org/1",)
    devices: Sequence[str] = ("sim",)
    affected: str | Mapping[str, str] = "<0.8.5"
    kind: str = "wrong-result"
    phase: str | Sequence[str] = "probe"
    pattern: str = "expected 8"
    omits: str = ""
    old: Sequence[str] = ("old",)
    new: Sequence[str] = ("new",)
    keys: str = ""
    symptom: str = ""
    control: str = ""
    tables: str = ""

    def text(self) -> str:
        """Return the content of ``case.toml``. JSON strings and lists of them are valid TOML."""
        affected = {"vllm": self.affected} if isinstance(self.affected, str) else self.affected
        control = (
            ["[control]", f"omits = {json.dumps(self.omits)}", self.control] if self.omits else []
        )
        lines = (
            "format = 1",
            *_pairs(
                {
                    name: getattr(self, name)
                    for name in ("id", "title", "family", "upstream", "devices")
                }
            ),
            self.keys,
            "[affected]",
            *_pairs(affected),
            "[symptom]",
            *_pairs({"kind": self.kind, "phase": self.phase, "pattern": self.pattern}),
            self.symptom,
            *control,
            "[evidence]",
            *_pairs({"affected": self.old, "fixed": self.new}),
            self.tables,
        )
        return "".join(f"{line}\n" for line in lines if line)

    def write(self, cases: Path, files: Mapping[str, str] | None = None) -> Case:
        """Write ``cases/<id>/case.toml`` and ``files`` (name to content) beside it, overwriting
        existing ones."""
        folder = cases / self.id
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {CASE_FILE: self.text(), **(files or {})}.items():
            (folder / name).write_text(content)
        return load_case(folder / CASE_FILE)


def _pairs(table: Mapping[str, object]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in table.items()]
