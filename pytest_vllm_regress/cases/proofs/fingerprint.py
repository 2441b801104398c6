"""Fingerprints of cases: hashes that change with whatever may change a verdict.

The fingerprint of a case covers

- the claims of case.toml: id, devices, affected ranges, symptom, racy, control, variants, evidence
  environments. Prose (title, notes, links) is free;
- every ``*.py`` below the case's folder, without comments and docstrings;
- every other file there that is neither a record of this package nor the README: data that the
  test may read, and what the target may import (``import_path``);
- ``conftest.py`` beside the folder, and modules of the project that these import from elsewhere;
- the source of those built-in probe modules (``batch_files``, ``frontend`` and others) that this
  code names as "module:function".

A test that reads another file of the project is refused while it runs (``plugin/reads.py``).

It does not cover the code of the harness: a change there that alters a verdict is found by running
cases, or by judging stored observations again (``vllm-regress judge``).
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from ...engines.probe import BUILT_IN, built_in_sources
from ...util.files import files_below, read_bounded
from ...util.paths import PACKAGE
from ..model import Case

_MAX_CODE = 4 * 1024 * 1024
_BUILT_IN_CALL = re.compile(rb"""["'](\w+):\w+["']""")
_RECORDS = {"case.toml", "README.md", "evidence.json", "observations.json", "needs.json"}
"""Files of a case that no test reads: the claims are covered one by one, the rest is written."""
_STATEMENT_STARTS = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def case_fingerprint(case: Case, code: str | None = None) -> str:
    """Return a hash of the claims of case.toml, the code of the case, and the built-in probe
    modules that it calls.

    ``code``: the fingerprint of the code, if it is known already.
    """
    return _digest(claims_fingerprint(case), code or code_fingerprint(case.directory))


def claims_fingerprint(case: Case) -> str:
    """Return a hash of the claims of case.toml.

    When they change, stored observations can be judged again (``vllm-regress judge``).
    """
    control = case.control
    claims = (
        case.id,
        case.devices,
        [str(affected) for affected in case.affected],
        _without_default(astuple(case.symptom)),
        case.racy,
        # Not the words of omits and none: they may change freely.
        (
            control.declared,
            bool(control.none),
            repr(sorted(control.changes.items())),
            repr(sorted(control.probe.items())),
        ),
        [
            (variant.name, variant.never, [str(r) for r in variant.ranges])
            for variant in case.variants.values()
        ],
        astuple(case.evidence),
    )
    return _digest(repr(claims))


def _without_default(symptom: tuple[object, ...]) -> tuple[object, ...]:
    """Return the fields of a symptom, without an empty ``all``: proofs that are older than this key
    stay valid."""
    return symptom if symptom[-1] else symptom[:-1]


def code_fingerprint(directory: Path) -> str:
    """Return a hash of what the case's tests may read: its folder, modules of the project that it
    imports, and the built-in probe modules that it calls."""
    files = files_below(directory)
    names = {file.relative_to(directory): file for file in files}
    sources = {name.as_posix(): _read_code(file) for name, file in names.items() if _is_read(name)}
    for file in imported_modules(directory, [file for file in files if file.suffix == ".py"]):
        name = file.relative_to(directory.resolve().parent.parent).as_posix()
        sources[f"project:{name}"] = _read_code(file)
    called = {name.decode() for code in sources.values() for name in _BUILT_IN_CALL.findall(code)}
    for module in sorted(called.intersection(BUILT_IN)):
        sources |= {f"{module}:{file.name}": _read_code(file) for file in built_in_sources(module)}
    return _digest(*(part for source in sources.items() for part in source))


def imported_modules(directory: Path, files: Iterable[Path]) -> tuple[Path, ...]:
    """Return ``conftest.py`` beside the case's folder and the modules elsewhere in the project that
    it and ``files`` import, directly or not, in order.

    The project is the folder that holds the collection of cases. This package is not part of it.
    """
    directory = directory.resolve()
    project = directory.parent.parent
    found: dict[Path, None] = {}
    waiting = [*(file.resolve() for file in files), directory.parent / "conftest.py"]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        if not file.is_relative_to(directory):
            found[file] = None
        for module in _imports(file):
            path = Path(*module.split("."))
            if path.parts[0] == PACKAGE.name:
                continue
            for root in (directory.parent, project):
                stems = (root / path, *(root / parent for parent in path.parents if parent.name))
                waiting += [
                    place
                    for stem in stems
                    for place in (stem.with_suffix(".py"), stem / "__init__.py")
                ]
    return tuple(sorted(found))


def _imports(file: Path) -> Iterator[str]:
    """Yield the modules that a file may import, whether it is a package's attribute or a module."""
    try:
        tree = ast.parse(read_bounded(file, _MAX_CODE, what="a test or probe"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import in a helper stays in the helper's folder.
            place = [] if not node.level else [_package_of(file, node.level)]
            base = ".".join(filter(None, (*place, node.module)))
            yield from (".".join(filter(None, (base, alias.name))) for alias in node.names)
            if base:
                yield base


def _package_of(file: Path, level: int) -> str:
    """Return the dotted name of the package that a relative import of this level begins at."""
    folder = file.parents[level - 1]
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _is_read(name: Path) -> bool:
    """Return whether a test may read a file of its case, by the path in the case's folder."""
    in_cache = name.suffix == ".pyc" or any(part.startswith(".") for part in name.parts)
    return not in_cache and str(name) not in _RECORDS


def _read_code(file: Path) -> bytes:
    code = read_bounded(file, _MAX_CODE, what="a test or probe")
    return _without_prose(code) if file.suffix == ".py" else code


def _without_prose(code: bytes) -> bytes:
    """Return Python code without comments, docstrings and blank lines, which change no verdict.
    Code that cannot be tokenized stays as it is.

    The result does not depend on the version of Python: those differ in how they tokenize
    f-strings, so the rest is copied, not put together.
    """
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(code).readline))
        lines = [line.decode(tokens[0].string) for line in io.BytesIO(code)]
    except (SyntaxError, UnicodeError, tokenize.TokenError):
        return code
    docstrings = list(
        _docstrings(
            [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
        )
    )
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    for token in sorted([*docstrings, *comments], key=lambda token: token.start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        lines[first - 1 : last] = [
            lines[first - 1][:start].rstrip() + lines[last - 1][end:],
            *[""] * (last - first),
        ]
    emptied = {
        token.start[0]
        for token in (*docstrings, *(token for token in tokens if token.type == tokenize.NL))
    }
    return "".join(
        line for row, line in enumerate(lines, 1) if row not in emptied or line.strip()
    ).encode()


def _docstrings(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Yield the strings that are statements of their own."""
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_plain = (
            token.type == tokenize.STRING
            and token.string[0] not in "fF"
            and token.string[1] not in "fF"
        )
        if is_plain and before.type in _STATEMENT_STARTS and after.type == tokenize.NEWLINE:
            yield token


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update((part.encode() if isinstance(part, str) else part) + b"\0")
    return digest.hexdigest()[:16]
