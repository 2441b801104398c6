"""A test item as the plugin sees it, without a running pytest, next to a case and with a stand-in
for the session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.environments.installed import Installed
from pytest_vllm_regress.plugin.markers import MarkedCase, marked_case
from pytest_vllm_regress.plugin.state import SESSION, SETTINGS
from tests.helpers.cases import CaseFile

DEMO = CaseFile()


@dataclasses.dataclass
class FakeSession:
    """A session with one environment, or with none that is usable (``broken``)."""

    version: str
    broken: Exception | None = None
    leftover_reports: tuple[object, ...] = ()

    def environment_names(self) -> tuple[str, ...]:
        return ("old",)

    def answered(self) -> list[str]:
        return ["POST /v1/completions: status 500"]

    def progress(self, line: str) -> None:
        """Nobody reads it."""

    def begin_again(self, user: str) -> None:
        """It has no engines."""

    def target(self, name: str) -> Target:
        if self.broken is not None:
            raise self.broken
        installed = Installed("/x", "3.11", MappingProxyType({"vllm": self.version}))
        return Target(name, Path("/x/bin/python"), "sim", installed)


@dataclasses.dataclass
class FakeItem:
    """The parts of a ``pytest.Item`` that the plugin uses.

    ``events`` lists the hook calls: their names, or the report.
    """

    config: Any
    path: Path
    marker: pytest.Mark
    nodeid: str = "test_demo.py::test_demo"
    name: str = "test_demo"
    location: tuple[str, int, str] = ("test_demo.py", 3, "test_demo")
    fixturenames: tuple[str, ...] = ("vllm_env",)
    stash: pytest.Stash = dataclasses.field(default_factory=pytest.Stash)
    events: list[Any] = dataclasses.field(default_factory=list)

    @property
    def ihook(self) -> Any:
        return SimpleNamespace(
            pytest_runtest_logstart=lambda **_: self.events.append("start"),
            pytest_runtest_logreport=lambda report: self.events.append(report),
            pytest_runtest_logfinish=lambda **_: self.events.append("finish"),
        )

    @property
    def own_markers(self) -> list[pytest.Mark]:
        return [self.marker]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marker if name == self.marker.name else None

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return []

    def _initrequest(self) -> None:
        self.events.append("again")

    @property
    def marked(self) -> MarkedCase:
        marked = marked_case(self)  # type: ignore[arg-type]
        assert marked is not None
        return marked


MakeItem = Callable[..., Any]


@pytest.fixture
def make_item(tmp_path: Path) -> MakeItem:
    """``make_item(CaseFile(...), version="0.8.4", **settings)``."""

    def make(
        case: CaseFile = DEMO,
        version: str = "0.8.4",
        broken: Exception | None = None,
        **settings: Any,
    ) -> FakeItem:
        stash = pytest.Stash()
        stash[SETTINGS] = Settings(**settings)
        stash[SESSION] = cast(Session, FakeSession(version, broken))
        config = SimpleNamespace(stash=stash, getoption=lambda name: None)
        directory = case.write(tmp_path / "cases").directory
        return FakeItem(config, directory / "test_demo.py", pytest.mark.vllm_case(case.id).mark)

    return make


def report(outcome: str = "passed", when: str = "call", text: object = None) -> Any:
    """A report as pytest makes it."""
    return pytest.TestReport(
        "test_demo.py::test_demo",
        ("test_demo.py", 3, "test_demo"),
        {},
        outcome,  # type: ignore[arg-type]
        text,  # type: ignore[arg-type]
        when,  # type: ignore[arg-type]
    )
