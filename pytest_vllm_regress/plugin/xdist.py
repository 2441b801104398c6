"""Under ``--dist loadgroup``: tests of one environment and engine stay on one xdist worker, so that they share the engine."""

from __future__ import annotations

import re

import pytest

from .markers import engine_marker

_NOT_IN_A_NAME = re.compile(
    r"[^\w.=]+"
)  # xdist looks for a group behind the last "@" of a test's id, if no "]" follows


def mark(items: list[pytest.Item]) -> None:
    """Give each test its group; tests with a group of their own, or an engine of their own, are left alone."""
    for item in items:
        if "engine_spec" not in getattr(item, "fixturenames", ()) or item.get_closest_marker("xdist_group"):
            continue
        params = getattr(getattr(item, "callspec", None), "params", {})
        marker = engine_marker(item)
        if not marker.fresh:
            values = {**marker.fixed, **params.get("engine_spec", {})}
            name = f"{params.get('vllm_env', '')} {marker.front} {sorted(values.items(), key=repr)}"
            item.add_marker(pytest.mark.xdist_group(_NOT_IN_A_NAME.sub("-", name).strip("-")))


def write(items: list[pytest.Item]) -> None:
    """From pytest 9.2 on what xdist 3.8 does to a test's id has no effect, and it groups nothing (pytest-xdist#1386): do it for xdist."""
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if (
            group is None
            or not getattr(item.config.option, "loadgroup", False)
            or item.nodeid != test_id(item)
            or not hasattr(item, "_id")
        ):
            continue
        name = group.args[0] if group.args else group.kwargs.get("name", "default")
        item._id = type(item._id).parse(f"{item.nodeid}@{name}")


def test_id(item: pytest.Item) -> str:
    """The test's id without xdist's group: what pytest takes on its command line."""
    stem, at, group = item.nodeid.rpartition("@")
    return (
        stem
        if at and "]" not in group and "/" not in group and "::" not in group and item.get_closest_marker("xdist_group")
        else item.nodeid
    )
