"""Setting a logger's level to its current value keeps the caches of all loggers."""

from __future__ import annotations

import logging

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import sim


def test_setting_the_same_level_keeps_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.Logger, "setLevel", logging.Logger.setLevel)  # restored afterwards
    sim.skip_unchanged_log_levels()
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
