"""Private names of pytest and its plugins, all in this module and tested with the oldest and newest
supported pytest.

When a new release drops one of them, only this module must change.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


def run_once(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run set-up, call and tear-down of a test through all hooks.

    Return the reports, which are not logged yet.
    """
    return runtestprotocol(item, log=False, nextitem=nextitem)


def renew(item: pytest.Item) -> None:
    """Prepare a test for another run, as pytest-rerunfailures does."""
    item._initrequest()  # type: ignore[attr-defined]


def write_group(item: pytest.Item, name: str) -> None:
    """Append xdist's group to the test's id.

    Since pytest 9.2, xdist 3.8 cannot do that itself (pytest-xdist#1386).
    """
    if hasattr(item, "_id"):
        item._id = type(item._id).parse(f"{item.nodeid}@{name}")


def renew_timeout(item: pytest.Item) -> None:
    """Restart pytest-timeout's timer for another run of a test."""
    if item.config.pluginmanager.hasplugin("timeout"):
        from pytest_timeout import _get_item_settings  # type: ignore[import-untyped]

        settings = _get_item_settings(item)
        if settings.timeout and settings.timeout > 0 and not settings.func_only:
            item.ihook.pytest_timeout_cancel_timer(item=item)
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
