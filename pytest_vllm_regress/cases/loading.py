"""Reading case files: checking them against the schema, finding them, selecting some.

An invalid file does not stop work on other cases: ``load_valid_cases`` returns the valid ones and
the problems, and commands that were given ids warn about the rest
(``cli/context.Invocation.select``). A command over all cases ends with exit code 2 if any file is
invalid. In pytest,
``load_case_for`` reads only the case.toml beside a test, so another case's file is never read.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.utils import canonicalize_name

from ..errors import CaseFileError, Kind, Part, UsageError
from ..util.documents import load_toml
from ..util.paths import shipped
from ..util.project import check_owner, folders_of_project
from ..util.validation import did_you_mean, format_value, problems
from ..util.versions import alternatives_of
from .case_format import FORMAT, format_problem, upgrade
from .control import Control, control_problems
from .model import NEEDS_CONTROL_LEG, SPECIFIER_HELP, Case, EvidenceEnvironments, Range, Variant
from .symptom import Symptom

CASE_FILE = "case.toml"
MAX_BYTES = 64 * 1024
CASE_ID = "1 to 64 of a-z, 0-9 and -, starting with a letter or a digit"
_CASE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def is_case_id(text: str) -> bool:
    """Return whether ``text`` is valid as a case's id, which is also the name of its directory.

    ``CASE_ID`` says what is allowed.
    """
    return _CASE_ID.fullmatch(text) is not None


def load_case(path: Path) -> Case:
    """Read one case.toml, also of an older format.

    Raises ``CaseFileError`` that lists everything wrong with it.
    """
    document = _parse(path)
    if problem := format_problem(document):
        raise CaseFileError(_message(path, [problem]))
    has_format = "format" in document
    upgrade(document)
    invalid = problems(document, "case_schema.json") or [
        *_bad_pattern(document),
        *_bad_specifiers(document),
        *_bad_control(document),
    ]
    if invalid:
        hint = f"format: missing, so this was read as the format before {FORMAT}. See `vllm-regress migrate {path.parent}`"
        raise CaseFileError(_message(path, invalid if has_format else [*invalid, hint]))
    return _case(document, path)


@functools.lru_cache(maxsize=256)
def load_case_for(test_file: Path) -> Case:
    """Return the case of a test module: case.toml beside it. Read once per process."""
    path = test_file.with_name(CASE_FILE)
    if not path.exists():
        raise CaseFileError(
            f"{test_file}: there is no {CASE_FILE} beside it, which vllm_case needs. `vllm-regress new` creates one"
        )
    return load_case(path)


@dataclasses.dataclass(frozen=True)
class LoadedCases:
    """The valid cases of a directory, by id, and one message for each file that is not valid."""

    cases: tuple[Case, ...]
    problems: tuple[str, ...]


def load_valid_cases(root: Path) -> LoadedCases:
    """Read every root/<slug>/case.toml; an invalid file does not hide the others.

    Of two cases with the same id, the first counts and the second is a problem. Raises
    ``UsageError`` if ``root`` is no directory, or
    contains no case: an audit would find nothing then.
    """
    cases: dict[str, Case] = {}
    invalid: list[str] = []
    for directory in _case_directories(root):
        try:
            _check_place(directory, root)
            case = load_case(directory / CASE_FILE)
        except CaseFileError as error:
            invalid.append(str(error))
            continue
        first = cases.setdefault(case.id, case)
        if first is not case:
            invalid.append(
                f"{case.path}: id = {case.id!r}: {first.path} has the same id; ids are unique"
            )
    return LoadedCases(tuple(cases[case_id] for case_id in sorted(cases)), tuple(invalid))


def _case_directories(root: Path) -> list[Path]:
    if not root.is_dir():
        raise UsageError(
            f"{root}: no such directory of cases. Give one that holds <slug>/{CASE_FILE} with --cases DIR"
        )
    directories = sorted(path for path in root.iterdir() if os.path.lexists(path / CASE_FILE))
    if not directories:
        raise UsageError(
            f"{root}: no case (<slug>/{CASE_FILE}) in it. Give a directory that holds one with --cases DIR; without --cases, the cases of this "
            "project or the built-in ones are used"
        )
    return directories


def load_all_cases(root: Path) -> tuple[Case, ...]:
    """Return every root/<slug>/case.toml, by id.

    Raises ``CaseFileError`` that lists the problems of all files.
    """
    loaded = load_valid_cases(root)
    if loaded.problems:
        raise CaseFileError("\n".join(loaded.problems))
    return loaded.cases


def default_cases_dir(start: Path | None = None) -> Path:
    """Return cases/ of the project around ``start`` (default: the working directory), or else the
    cases that come with the package.

    Raises ``UsageError`` for cases owned by another user, because their tests and probes would be
    run.
    """
    directory = (start or Path.cwd()).absolute()
    for candidate in (folder / "cases" for folder in folders_of_project(directory)):
        files = sorted(candidate.glob(f"*/{CASE_FILE}"))
        if files:
            for path in (candidate, *(part for file in files for part in (file.parent, file))):
                check_owner(path, "To use these cases, name their directory with --cases DIR")
            return candidate
    candidate = shipped("cases")
    if any(candidate.glob(f"*/{CASE_FILE}")):
        return candidate
    raise UsageError(
        f"no cases found: no cases/*/{CASE_FILE} in {directory} or its project, and none in the package. "
        "Give their directory with --cases DIR"
    )


def select_cases(cases: Iterable[Case], ids: Iterable[str]) -> tuple[Case, ...]:
    """Return the cases with these ids, or all without ids.

    Raises ``UsageError`` for an unknown id.
    """
    by_id = {case.id: case for case in cases}
    selected = list(dict.fromkeys(ids)) or list(by_id)
    unknown = [name for name in selected if name not in by_id]
    if unknown:
        names = "; ".join(f"{format_value(name)}.{did_you_mean(name, by_id)}" for name in unknown)
        raise UsageError(
            f"no such case: {names} `vllm-regress list` shows the {len(by_id)} known ones"
        )
    return tuple(by_id[name] for name in selected)


def _parse(path: Path) -> dict[str, Any]:
    return load_toml(path, MAX_BYTES, what="a case file", error=CaseFileError)


def _bad_pattern(document: Mapping[str, Any]) -> list[str]:
    pattern = document["symptom"]["pattern"]
    try:
        re.compile(pattern, re.MULTILINE)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        return [
            f"symptom.pattern = {format_value(pattern)}: not a valid regular expression: {error.msg}{place}"
        ]
    except (RecursionError, OverflowError) as error:
        return [
            f"symptom.pattern = {format_value(pattern)}: not a usable regular expression: {error}"
        ]
    return []


def _bad_control(document: Mapping[str, Any]) -> list[str]:
    if invalid := control_problems(document["control"]) if "control" in document else []:
        return invalid
    kinds = sorted(NEEDS_CONTROL_LEG.intersection(_several(document["symptom"]["kind"])))
    if kinds and not document.get("control", {}).get("omits"):
        return [
            f"control: missing; {' or '.join(kinds)} needs a control leg: name the single thing that it leaves out in omits, "
            "and leave it out with EngineSpec fields or the fixture vllm_leg. The same test must pass then"
        ]
    return []


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _bad_specifiers(document: Mapping[str, Any]) -> list[str]:
    tables = {"affected": document["affected"]}
    for name, variant in document.get("variants", {}).items():
        if variant["affected"] is not False:
            tables[f"variants.{name}.affected"] = variant["affected"]
    return [
        f"{key}.{package} = {format_value(specifier)}: {SPECIFIER_HELP}"
        for key, table in tables.items()
        for package, specifier in table.items()
        if alternatives_of(specifier) is None
    ]


def _case(document: Mapping[str, Any], path: Path) -> Case:
    symptom = document["symptom"]
    return Case(
        id=document["id"],
        title=document["title"],
        family=document["family"],
        upstream=tuple(document["upstream"]),
        devices=tuple(document["devices"]),
        affected=_ranges(document["affected"]),
        symptom=Symptom(
            tuple(map(Kind, _several(symptom["kind"]))),
            _several(symptom["phase"]),
            symptom["pattern"],
            tuple(map(Part, _several(symptom.get("where", [])))),
        ),
        evidence=EvidenceEnvironments(
            tuple(document["evidence"]["affected"]), tuple(document["evidence"]["fixed"])
        ),
        path=path,
        fixed_by=tuple(document.get("fixed-by", ())),
        broken_by=tuple(document.get("broken-by", ())),
        variants=MappingProxyType(
            {name: _variant(name, table) for name, table in document.get("variants", {}).items()}
        ),
        control=Control.from_table(document.get("control", {})),
        **{
            name: document[name]
            for name in ("workaround", "racy", "notes", "since")
            if name in document
        },
    )


def _variant(name: str, table: Mapping[str, Any]) -> Variant:
    affected = table["affected"]
    return Variant(
        name,
        affected is False,
        () if affected is False else _ranges(affected),
        table.get("reason", ""),
    )


def _ranges(table: Mapping[str, str]) -> tuple[Range, ...]:
    return tuple(
        Range(canonicalize_name(package), specifier) for package, specifier in table.items()
    )


def _check_place(directory: Path, root: Path) -> None:
    if not is_case_id(directory.name):
        raise CaseFileError(
            f"{directory}: the name of the directory is not a slug; allowed is {CASE_ID}"
        )
    try:
        inside = (directory / CASE_FILE).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # before Python 3.13, a link to itself is a RuntimeError
        raise CaseFileError(
            f"{directory / CASE_FILE}: a link that leads nowhere; put the file itself there"
        ) from None
    if not inside:
        raise CaseFileError(
            f"{directory / CASE_FILE}: leads out of {root} through a link; put the file itself there"
        )


def _message(path: Path, messages: list[str]) -> str:
    return "\n".join(f"{path}: {line}" for line in messages)
