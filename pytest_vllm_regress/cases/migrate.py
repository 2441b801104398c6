"""Rewrite case files, keeping comments and layout: those of older formats, with what has to be
rewritten by hand, and corrected claims."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ..errors import CaseFileError, UsageError
from ..util.documents import parse_toml
from ..util.files import files_below, read_bounded, write_atomically
from .case_format import FORMAT, format_problem, upgrade
from .loading import CASE_FILE, MAX_BYTES
from .model import Range

_REASON = re.compile(
    r"^(\[control\][^\n]*\n(?:(?!\[)[^\n]*\n)*?[ \t]*)reason(?=[ \t]*=)", re.MULTILINE
)
_OLD_CODE = (
    (
        re.compile(r"vllm_regress_target\.grammars import .*\btakes\b"),
        'takes is called accepts; without a probe.py: vllm_probe("grammars:accepts", ...)',
    ),
    (
        re.compile(r"vllm_regress_target\.frontend import .*\bis_beyond_xgrammar\b"),
        'is_beyond_xgrammar is called is_unsupported_by_xgrammar; without a probe.py: vllm_probe("frontend:is_unsupported_by_xgrammar", ...)',
    ),
)
"""Names that tests and probes written for an older format may use, and what to write instead."""


@dataclasses.dataclass(frozen=True)
class Migration:
    """A case file in the current format. ``changes`` is empty if the file has that format already.

    ``manual``: what has to be rewritten by hand, in the case file and in the Python files beside
    it.
    """

    path: Path
    text: str
    changes: tuple[str, ...]
    manual: tuple[str, ...]

    def write(self) -> None:
        """Replace the file; nothing is written without changes."""
        if self.changes:
            write_atomically(self.path, self.text)


def case_files(directory: Path) -> list[Path]:
    """Return the case file of ``directory``, or those of its subdirectories.

    Raises ``UsageError`` if there is none.
    """
    files = [path for path in (directory / CASE_FILE,) if path.exists()] or sorted(
        directory.glob(f"*/{CASE_FILE}")
    )
    if not files:
        raise UsageError(
            f"{directory}: neither a case nor a directory of cases: no {CASE_FILE} in it or one level below"
        )
    return files


def migrate(path: Path) -> Migration:
    """Return the case file at ``path`` in the current format, with its comments and layout.

    Raises ``CaseFileError`` if it cannot be read.
    """
    content = read_bounded(path, MAX_BYTES, what="a case file", error=CaseFileError)
    try:
        text = content.decode("utf-8")
        document = parse_toml(text)
    except ValueError as error:
        raise CaseFileError(f"{path}: not valid TOML: {error}") from None
    if problem := format_problem(document):
        raise CaseFileError(f"{path}: {problem}")
    changes = upgrade(document)
    manual = [*_manual(path, document, changes), *_old_code(path.parent)]
    return Migration(
        path, _rewritten(text, document) if changes else text, tuple(changes), tuple(manual)
    )


def with_range(text: str, affected: Range) -> str:
    """Return the text of a case file in which ``[affected]`` has this specifier for the range's
    package, which it must name."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    table = file["affected"]
    table[next(name for name in table if canonicalize_name(name) == affected.package)] = (
        affected.specifier
    )
    return _checked(file.as_string())


def with_fixed_evidence(text: str, environment: str) -> str:
    """Return the text of a case file with one more environment in ``evidence.fixed``."""
    import tomlkit

    file: Any = tomlkit.parse(text)
    file["evidence"]["fixed"].append(environment)
    return _checked(file.as_string())


def _rewritten(text: str, document: MutableMapping[str, Any]) -> str:
    """Return ``text`` with the values of the upgraded ``document``.

    Comments and layout stay where tomlkit can keep them.
    """
    import tomlkit

    renamed = _REASON.sub(r"\1omits", text)  # tomlkit cannot rename a key in its place
    for source in (renamed, text):
        with contextlib.suppress(tomlkit.exceptions.TOMLKitError):
            file = tomlkit.parse(source)
            _copy(document, file)
            del file["format"]
            result = f"format = {FORMAT}\n{file.as_string()}"
            if parse_toml(result) == document:
                return result
    raise AssertionError("tomlkit did not write what it was given")


def _copy(source: MutableMapping[str, Any], target: MutableMapping[str, Any]) -> None:
    """Make ``target`` equal to ``source``, touching only what differs."""
    for name in [name for name in target if name not in source]:
        del target[name]
    for name, value in source.items():
        if isinstance(value, MutableMapping) and isinstance(target.get(name), MutableMapping):
            _copy(value, target[name])
        elif target.get(name) != value:
            target[name] = value


def _manual(path: Path, document: MutableMapping[str, Any], changes: list[str]) -> Iterator[str]:
    """Yield what has to be decided by hand in a file that has changed."""
    control = document.get("control")
    if isinstance(control, MutableMapping) and "reason" in control:
        yield f"{path}: control.reason: is called omits, which is there too: keep one of them"
    elif isinstance(control, MutableMapping) and not control:
        yield f"{path}: control: empty; say with omits which single thing the control leg leaves out"
    older = len(changes) > 1
    symptom = document.get("symptom")
    if older and isinstance(symptom, MutableMapping) and "where" not in symptom:
        yield (
            f"{path}: symptom.pattern: was searched in everything that the failure printed; now only in the parts that "
            "CONTRIBUTING.md lists for its kind. Name other parts with symptom.where, and run `vllm-regress validate`"
        )


def _old_code(directory: Path) -> Iterator[str]:
    for file in files_below(directory, ".py"):
        text = read_bounded(file, 4 * 1024 * 1024, what="a test or probe").decode(
            "utf-8", errors="replace"
        )
        for number, line in enumerate(text.splitlines(), 1):
            yield from (
                f"{file}:{number}: {advice}"
                for pattern, advice in _OLD_CODE
                if pattern.search(line)
            )


def _checked(text: str) -> str:
    parse_toml(text)  # tomlkit must have written valid TOML
    return text
