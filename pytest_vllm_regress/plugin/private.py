"""What pytest and its plugins have no public name for. All of it stands here, and is tested with the oldest and the newest pytest we support.

Where a newer release has a name no more, this module is the only one to mend.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


def run_once(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Set-up, call and tear-down of a test, through every hook that others wrap; the reports, which nobody was told of yet."""
    return runtestprotocol(item, log=False, nextitem=nextitem)


def renew(item: pytest.Item) -> None:
    """Make a test that was run ready to run again, as pytest-rerunfailures does it."""
    item._initrequest()  # type: ignore[attr-defined]


def write_group(item: pytest.Item, name: str) -> None:
    """Put xdist's group behind the test's id. From pytest 9.2 on what xdist 3.8 does to an id has no effect (pytest-xdist#1386)."""
    if hasattr(item, "_id"):
        item._id = type(item._id).parse(f"{item.nodeid}@{name}")


def renew_timeout(item: pytest.Item) -> None:
    """A further run of a test gets pytest-timeout's time anew."""
    if item.config.pluginmanager.hasplugin("timeout"):
        from pytest_timeout import _get_item_settings  # type: ignore[import-untyped]

        settings = _get_item_settings(item)
        if settings.timeout and settings.timeout > 0 and not settings.func_only:
            item.ihook.pytest_timeout_cancel_timer(item=item)
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
