"""The formats that results are shown and written in, and the files that ``--out`` names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cases.model import Case
from ..cases.results import RunResult
from ..errors import UsageError
from ..util.files import check_distinct, check_writable, is_special, write_atomically
from ..util.paths import writable_root

Say = Callable[[str], None]
Known = Callable[[], Sequence[Case]]
"""Loads the cases, for titles, ranges and links. Only pages need them."""
DOCUMENTS = {".html": ("html", "page"), ".md": ("markdown", "summary"), ".xml": ("junit", "JUnit")}
"""Format by the ending of a file, and what the file is called. Any other ending is JSON."""


def rendered(format: str, run: RunResult, known: Known) -> str:
    """Return the results as ``html``, ``markdown``, ``junit`` or ``json``."""
    if format == "html":
        from .pages.run_page import page

        return page(run, known())
    if format == "markdown":
        from .markdown_and_junit import markdown_text

        return markdown_text(run)
    if format == "junit":
        from .markdown_and_junit import junit_xml

        return junit_xml(run)
    return json.dumps(run.to_json(), indent=2)


@dataclass(frozen=True)
class OutputFiles:
    """What ``--out`` names: ``documents`` for people and CI systems, and at most one place for the
    ``results``, a file ending in .json or a folder."""

    results: Path | None = None
    documents: tuple[Path, ...] = ()

    @classmethod
    def of(cls, paths: Iterable[Path] | None, inputs: Sequence[Path] = ()) -> OutputFiles:
        """Raise ``UsageError`` if one of them is an input or another output, or if a file cannot be
        written: before a run, which may take hours."""
        given = list(paths or ())
        if Path("-") in given:
            raise UsageError("--out -: standard output has what --format names; leave --out out")
        check_distinct(given, list(inputs))
        for path in given:
            _check_ending(path)
        documents = tuple(path for path in given if path.suffix in DOCUMENTS)
        results = [path for path in given if path not in documents]
        if len(results) > 1:
            raise UsageError(
                f"--out: {' and '.join(map(str, results))} would both get the results as JSON. "
                f"Name one of them, and others that end in {', '.join(DOCUMENTS)}"
            )
        for path in documents:
            check_writable(path)
        return cls(results[0] if results else None, documents)

    def check_results(self) -> OutputFiles:
        """Return this. Raises ``UsageError`` if the results cannot be written."""
        from ..runner.run import check_destination  # for Linux only, like all runs

        check_destination(self.results)
        return self

    def save(self, run: RunResult, known: Known, say: Say) -> None:
        """Write the results, with a copy in the cache, and the documents."""
        from ..runner.run import save_results

        written = save_results(run, self.results, writable_root() / "results", say)
        if written is not None:
            say(f"results: {written}")
        self.write_documents(run, known, say)

    def write_documents(self, run: RunResult, known: Known, say: Say) -> None:
        for path in self.documents:
            format, name = DOCUMENTS[path.suffix]
            write_atomically(path, rendered(format, run, known))
            say(f"{name}: {path}")

    def rescue(self, say: Say) -> Callable[[RunResult], None]:
        """Return what saves the results so far of a run that fails."""
        from ..runner.run import rescue_to

        return rescue_to(self.results, writable_root() / "results", say)


def _check_ending(path: Path) -> None:
    """Refuse a misspelt ending, which would become a folder."""
    known = ("", ".json", *DOCUMENTS)
    # v0.8.4 is a fine name for a folder.
    if path.suffix in known or not path.suffix[1:].isalpha() or path.is_dir() or is_special(path):
        return
    raise UsageError(
        f"--out {path}: a file ends in .json, {', '.join(DOCUMENTS)}; a new folder has no ending"
    )
