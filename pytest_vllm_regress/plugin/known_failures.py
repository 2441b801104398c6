"""Names what is documented of the environment, below a failed test that shows no case itself."""

from __future__ import annotations

import pytest

from ..answers.explain.known_failures import KnownFailures
from ..cases.loading import load_valid_cases
from ..errors import RegressError
from ..util.paths import shipped
from .options import NAME_KNOWN_INI
from .session import environment_of

_KNOWN: pytest.StashKey[dict[str, KnownFailures]] = pytest.StashKey()


def name_known_failures(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add a section to the report of a failed test if a documented failure fits. ``matrix`` shows
    that itself."""
    config = item.config
    wanted = config.getini(NAME_KNOWN_INI) and not config.getoption("vllm_suite")
    if item.get_closest_marker("vllm_case") or not wanted:
        return
    try:
        environment = environment_of(item)
    except RegressError:  # the test has failed because of that
        return
    by_name = config.stash.setdefault(_KNOWN, {})
    if environment not in by_name:
        cases = load_valid_cases(shipped("cases")).cases
        by_name[environment] = KnownFailures.of(environment, cases)
    printed = (text for _, text in report.sections)
    suspects = by_name[environment].suspects("\n".join([report.longreprtext, *printed]))
    if words := str(suspects):
        report.sections.append((f"What is known of {environment}", words))
