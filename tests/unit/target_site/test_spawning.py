"""What a process that was forked in place of a spawned one must read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import values

from pytest_vllm_regress.target_site.vllm_regress_target import spawning


def test_counters_are_kept_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "ValueClass", values.MutexValue)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    spawning.count_where_asked()
    assert values.ValueClass is not values.MutexValue
    values.ValueClass("counter", "tokens", "tokens_total", (), (), "").inc(3)
    assert list(tmp_path.glob("counter_*.db"))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    spawning.count_where_asked()
    assert values.ValueClass is values.MutexValue
