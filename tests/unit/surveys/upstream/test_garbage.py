"""Garbage collection between upstream's tests."""

from __future__ import annotations

import gc

import pytest

from pytest_vllm_regress.surveys.upstream import replacing


def test_what_was_imported_is_left_out_until_an_engine_freezes_its_own_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    replacing.pytest_collection_finish()
    gc.unfreeze()
    assert calls == ["freeze"]
    gc.freeze()
    gc.unfreeze()
    assert calls == ["freeze", "freeze", "unfreeze"]
