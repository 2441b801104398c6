"""Fixed questions in the layout of the JSON Schema Test Suite: lists of groups with a description,
a schema and tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...schemas import Profile, features
from ...util.documents import load_json
from ...util.files import distinct_files, files_below
from ...util.paths import DATA, shipped
from ..hunter import load
from .schema_judge import NotJudged, judge
from .schema_oracle import SchemaQuestion

logger = logging.getLogger("vllm_regress.fuzz")

MIB = 1024 * 1024
MAX_BYTES = 64 * MIB
BASE_SECONDS = 30.0
SECONDS_PER_MIB = 10.0
"""Limit of the time for the schemas of one file: ``BASE_SECONDS`` and this for each MiB."""
BUILT_IN = DATA / "corpus"


@dataclass(frozen=True)
class CorpusGroup:
    """A schema with instances.

    ``name`` consists of the file's name and the description, ``used`` are the schema's features.
    """

    name: str
    question: SchemaQuestion
    used: frozenset[str]

    def claimed_by(self, profile: Profile) -> bool:
        """Whether the profile has all features that the schema uses."""
        return self.used <= profile.features


def read(folder: Path) -> Iterator[CorpusGroup]:
    """Yield the groups below a folder, in order of their files.

    Schemas that no backend accepts are left out: those that are not objects, refer to other
    documents or are invalid. So are those that jsonschema cannot judge within the limits of
    ``judge``. Raises ``UsageError`` for a file that does not have the layout of the suite, and for
    one that takes too long.
    """
    files = distinct_files(files_below(folder, ".json"))
    if not files:
        raise UsageError(
            f"{folder}: there are no files of the JSON Schema Test Suite (*.json) below this folder"
        )
    for path in files:
        try:
            groups = load_json(path, MAX_BYTES, what="a file of the JSON Schema Test Suite")
            entries = [
                (f"{path.stem}: {group['description']}", group["schema"], group["tests"])
                for group in groups
            ]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path}: not a file of the JSON Schema Test Suite: {error}") from None
        yield from _groups(path, entries)


def _groups(path: Path, entries: list[tuple[str, Any, Any]]) -> Iterator[CorpusGroup]:
    """Yield the usable groups of a file.

    Raises ``UsageError`` if judging them takes too long for a file of this size.
    """
    limit = BASE_SECONDS + SECONDS_PER_MIB * path.stat().st_size / MIB
    spent = 0.0
    for name, schema, tests in entries:
        began = time.monotonic()
        group = _group(name, schema, tests)
        spent += time.monotonic() - began
        if group:
            yield group
        if spent > limit:
            raise UsageError(
                f"{path}: judging its schemas takes more than {limit:.0f} s, up to {name!a}. Remove the slow ones: -v names them"
            )


def shipped_findings() -> Iterator[CorpusGroup]:
    """Yield the findings in ``docs/findings`` for all backends, so that each backend is asked what
    others got wrong."""
    for path in sorted(shipped("docs/findings").glob("*.json")):
        question = load(path).question
        yield CorpusGroup(f"finding {path.stem}", question, features(question.schema))


def _group(name: str, schema: Any, tests: Any) -> CorpusGroup | None:
    """Return the group as far as it is usable.

    One that jsonschema cannot judge within the limits is not.
    """
    try:
        usable = judge().usable(schema, tests)
    except NotJudged as error:
        logger.warning("%s: left out: %s", name, error)
        return None
    if usable is None:
        return None
    question = SchemaQuestion(usable["schema"], tuple(usable["valid"]), tuple(usable["invalid"]))
    return CorpusGroup(name, question, frozenset(usable["features"]))
