"""What configuration the tests of a case need, recorded beside the case: ``needs.json``.

``validate`` writes the file (``recording``), and ``audit --serve`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..util import codec
from ..util.versions import alternatives_of
from .model import Case
from .proofs.fingerprint import code_fingerprint

FILE = "needs.json"
MAX_BYTES = 1024 * 1024


class TestNeeds(codec.Document, frozen=True):
    """What a test function needs.

    ``front``: empty for a probe. ``engine``: allowed values by field of ``EngineSpec``; a field
    that the test does not set is left out. ``parsers``: allowed names by option. ``probe``: the
    built-in probe that it calls. ``variant``: the form of the failure that it shows, None for the
    failure itself. ``computed``: a fixture makes the configuration, so that ``engine`` does not
    tell everything. ``requires``: versions by package, without which the test says nothing.
    """

    __test__ = False  # not a pytest class

    test: str
    front: str = ""
    engine: dict[str, tuple[Any, ...]] = msgspec.field(default_factory=dict)
    parsers: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    probe: str = ""
    variant: str | None = None
    computed: bool = False
    requires: dict[str, str] = msgspec.field(default_factory=dict)

    def say_something_of(self, versions: Mapping[str, str]) -> bool:
        """Return whether the test can run with these versions, as far as they are known."""
        return all(
            any(
                part.contains(versions[package].partition("+")[0], prereleases=True)
                for part in allowed
            )
            for package, text in self.requires.items()
            if package in versions and (allowed := alternatives_of(text)) is not None
        )


class CaseNeeds(codec.Document, frozen=True):
    """Content of ``needs.json``. ``code``: the fingerprint of the tests that it is about."""

    code: str
    tests: tuple[TestNeeds, ...]


def _recorded(case: Case) -> CaseNeeds | None:
    """Return what is recorded beside the case; None if nothing is."""
    path = case.directory / FILE
    if not path.exists():
        return None
    return codec.load(CaseNeeds, path, MAX_BYTES, what="the needs of a case")


def needs_of(case: Case) -> tuple[TestNeeds, ...]:
    """Return the recorded needs of the case's tests; none if they were not recorded."""
    recorded = _recorded(case)
    return recorded.tests if recorded else ()


def needs_problem(case: Case) -> str:
    """Return why the recorded needs do not count; empty if they are up to date."""
    recorded = _recorded(case)
    if recorded and recorded.code == code_fingerprint(case.directory):
        return ""
    return f"{case.directory / FILE}: {'out of date' if recorded else 'missing'}"
