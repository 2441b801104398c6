"""Standing questions in the layout of the JSON Schema Test Suite: lists of groups with a description, a schema and tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..schemas import Profile, features, validator
from ..util.documents import load_json
from ..util.paths import DATA, shipped
from .artefact import load
from .finding import spelt
from .oracle import Question

MAX_BYTES = 64 * 1024 * 1024
BUILT_IN = DATA / "corpus"


@dataclass(frozen=True)
class Group:
    """One schema with its instances. ``name``: file and description."""

    name: str
    question: Question

    def claimed_by(self, profile: Profile) -> bool:
        """Whether the schema uses only what a profile has."""
        return features(self.question.schema) <= profile.features


def read(folder: Path) -> Iterator[Group]:
    """The groups below a folder, by file. What no backend can be asked is left out: schemas that are no objects, refer to other
    documents, or are no schemas. Raises ``UsageError`` for a file that is none of the suite's."""
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise UsageError(f"{folder}: no files of the JSON Schema Test Suite (*.json) are below it")
    for path in files:
        try:
            groups = load_json(path, MAX_BYTES, what="a file of the JSON Schema Test Suite")
            found = [(f"{path.stem}: {group['description']}", group["schema"], group["tests"]) for group in groups]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path}: not a file of the JSON Schema Test Suite: {error}") from None
        for name, schema, tests in found:
            if question := _question(schema, tests):
                yield Group(name, question)


def minima() -> Iterator[Group]:
    """The findings that come with the project, of all backends, each under its file's name: what one gets wrong is asked of the others too."""
    for path in sorted(shipped("docs/findings").glob("*.json")):
        yield Group(f"finding {path.stem}", load(path).question)


def _question(schema: Any, tests: list[Mapping[str, Any]]) -> Question | None:
    text = json.dumps(schema)
    if not isinstance(schema, dict) or any(
        word in text for word in ("://", '"$id"', '"id"', '"$dynamicRef"', '"$anchor"')
    ):
        return None
    bare = {key: value for key, value in schema.items() if key != "$schema"}
    judge = validator(bare)
    try:
        judge.check_schema(bare)
        # The suite's own verdict counts where the judge reads the schema the same way: its draft may be another one.
        kept = [test for test in tests if judge.is_valid(test["data"]) == test["valid"]]
    except Exception:  # the reference library of jsonschema raises kinds of its own for what it cannot resolve
        return None
    valid, invalid = (
        tuple(dict.fromkeys(spelt(test["data"]) for test in kept if test["valid"] is wanted))
        for wanted in (True, False)
    )
    return Question(bare, valid[:10], invalid[:10]) if valid or invalid else None
