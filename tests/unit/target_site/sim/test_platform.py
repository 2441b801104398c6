"""Which engines the simulated device accepts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.dialect.installed import simulates_v1


def test_v1_is_simulated_where_vllm_has_a_base_class_for_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = tmp_path / "vllm" / "v1" / "worker"
    workers.mkdir(parents=True)
    for folder in (workers, workers.parent, workers.parent.parent):
        (folder / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert not simulates_v1()
    (workers / "worker_base.py").touch()
    importlib.invalidate_caches()
    assert simulates_v1()
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        del sys.modules[name]
