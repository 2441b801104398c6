"""The order in which the workers of pytest-xdist take the tests of a case that documents a hang."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress.plugin import markers


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fixturenames = ["engine_spec"] if "server" in name else []
        self.groups: list[pytest.MarkDecorator] = []
        self.stash = pytest.Stash()

    def get_closest_marker(self, name: str) -> None:
        return None

    def iter_markers(self, name: str) -> tuple[()]:
        return ()

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.groups.append(marker)


def items(*names: str) -> Any:
    return [Item(name) for name in names]


@pytest.fixture(autouse=True)
def hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "_may_hang", lambda item: "hang" in item.name)


def test_tests_that_may_hang_come_first_followed_by_short_ones() -> None:
    collected = items(
        "server", "probe", "hanging probe", "other server", "hanging server", "other probe"
    )
    markers.begin_with_waits(collected)
    order = ["hanging server", "hanging probe", "probe", "other probe", "server", "other server"]
    assert [item.name for item in collected] == order


def test_nothing_is_reordered_without_hangs() -> None:
    collected = items("server", "probe")
    markers.begin_with_waits(collected)
    assert [item.name for item in collected] == ["server", "probe"]


def test_no_other_test_waits_behind_a_hang_in_its_group() -> None:
    hanging, clean = collected = items("hanging server", "server")
    markers.mark_groups(collected)
    assert not hanging.groups and clean.groups
