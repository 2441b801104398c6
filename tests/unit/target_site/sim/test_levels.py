"""Loggers in a warm agent: only a level that changes costs anything."""

from __future__ import annotations

import logging

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import sim


def test_a_level_that_is_set_again_leaves_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.Logger, "setLevel", logging.Logger.setLevel)  # put back afterwards
    sim._set_only_levels_that_change()
    logger = logging.getLogger(__name__)
    logger.setLevel("INFO")
    assert logger.isEnabledFor(logging.INFO)
    for same in ("INFO", logging.INFO):
        logger.setLevel(same)
        assert logger._cache  # type: ignore[attr-defined]
    logger.setLevel(logging.ERROR)
    assert not logger.isEnabledFor(logging.INFO)
    with pytest.raises(ValueError, match="LOUD"):
        logger.setLevel("LOUD")
