"""Cached answers of the package index."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.locks import lookup_cached


def test_answers_that_come_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    all_ask = threading.Barrier(4, timeout=60)

    def look_up(key: str) -> str:
        return lookup_cached("answers.json", key, lambda: f"{key} {all_ask.wait() < 4}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(look_up, "abcd"))
    assert json.loads((tmp_path / "answers.json").read_text()) == {
        key: f"{key} True" for key in "abcd"
    }
    assert lookup_cached("answers.json", "a", lambda: "asked again") == "a True"
