"""Which functions of vLLM each case executes, as recorded in one release (``tools/coverage.py``)."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from ..util import codec
from ..util.paths import DATA

FILE = DATA / "coverage.zip"
MEMBER = "coverage.json"


@dataclass(frozen=True)
class CaseCoverage:
    """Functions (``vllm.v1.core.sched.scheduler:Scheduler.schedule``) of a release.

    ``by_case``: the numbers of the ``functions`` that each case executes.
    """

    release: str
    functions: tuple[str, ...]
    by_case: Mapping[str, tuple[int, ...]]

    @classmethod
    def load(cls, path: Path = FILE) -> CaseCoverage:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            return codec.decode(cls, json.loads(archive.read(MEMBER)), str(path))

    @classmethod
    def of(cls, release: str, executed: Mapping[str, Set[str]]) -> CaseCoverage:
        """Return the coverage from the functions that each case executed."""
        functions = tuple(sorted(set().union(*executed.values())))
        numbers = {name: number for number, name in enumerate(functions)}
        by_case = {
            case_id: tuple(sorted(numbers[name] for name in executed[case_id]))
            for case_id in sorted(executed)
        }
        return cls(release, functions, by_case)

    def save(self, path: Path = FILE) -> None:
        """Write the file. Equal coverage gives equal bytes."""
        content = json.dumps(codec.encode(self), separators=(",", ":"))
        with zipfile.ZipFile(path, "w") as archive:
            member = zipfile.ZipInfo(MEMBER, (1980, 1, 1, 0, 0, 0))
            archive.writestr(member, content, zipfile.ZIP_LZMA)

    def executed_by(self, case_id: str) -> Set[str]:
        """Return the functions that a case executes; none if that is not recorded."""
        return {self.functions[number] for number in self.by_case.get(case_id, ())}
