"""A station's acts: after an engine that ended the next act gets a new one, but not after a hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded
from pytest_vllm_regress.fuzz.exercise import station_run
from pytest_vllm_regress.fuzz.exercise.station_run import StationRun
from pytest_vllm_regress.fuzz.exercise.workload import stations


@pytest.mark.parametrize(
    ("error", "kind", "more"),
    [(DeadlineExceeded, "hang", False), (ChildDied, "death", True)],
)
@pytest.mark.parametrize("starts", [True, False])
def test_a_hang_ends_its_station(
    monkeypatch: pytest.MonkeyPatch, error: Any, kind: str, more: bool, starts: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("nothing came", phase="request")

    engine = SimpleNamespace(get=SimpleNamespace if starts else fail, drop=lambda: None)
    monkeypatch.setattr(station_run, "kept_engine", lambda *_: engine)
    monkeypatch.setattr(StationRun, "_act", fail)
    session = cast(Any, SimpleNamespace(target=lambda name: None))
    station = next(station for station in stations() if len(station.acts) > 1)
    answers = StationRun(session, "vllm-1.0", station).run()
    place = f"{station.acts[0].name}/{'end' if starts else 'start'}"
    assert answers[place]["error"][0] == kind
    assert (len(answers) > 1) is more
