"""What upstream corrected after a release, and how many fixes landed after it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.fixes.index import Fix, FixIndex
from pytest_vllm_regress.answers.fixes.later import (
    Correction,
    named_regressions,
    patch_releases,
    weeks_after,
)

CACHE = {"v1/core/cache.py": ["evict"]}
LORA = {"lora/layers.py": ["load"]}
OTHER = {"v1/other.py": ["__init__"]}


def fix(number: int, date: str, title: str, changed: dict[str, list[str]], first: int) -> Fix:
    return Fix(number, f"{number:09x}", date, title, changed, "", "", first)


@pytest.fixture
def index() -> FixIndex:
    fixes = [
        fix(10, "2026-01-01", "[Bugfix] Old", OTHER, 0),
        fix(11, "2026-01-20", "[Bugfix] Evict in order", CACHE, 1),
        fix(12, "2026-01-21", "[Bugfix] Adapters", LORA, 1),
        fix(13, "2026-01-22", "Faster init", OTHER, 1),
        fix(20, "2026-02-02", "Fix eviction order", CACHE, 2),
        fix(21, "2026-02-03", "[Bugfix] Adapters on two GPUs", LORA, 3),
        fix(22, "2026-02-10", "Fix a regression of latency", OTHER, 3),
        fix(23, "2026-02-10", "Rewrite regression tests", OTHER, 3),
        fix(24, "2026-02-11", "Use the cache", CACHE, 3),
        fix(25, "2026-04-01", "[Bugfix] Late eviction", CACHE, 4),
        fix(26, "2026-04-01", "Fix loading broken by #12", {"a.py": ["f"]}, 4),
        fix(27, "2026-04-02", 'Revert "Faster init (#13)" (#13)', OTHER, 4),
    ]
    days = ["2026-01-10", "2026-02-01", "2026-02-01", "2026-03-01"]
    return FixIndex("abc", "2026-04-03", ["0.10.0", "0.11.0", "0.11.1", "0.12.0"], days, fixes)


def test_what_upstream_corrected_after_a_release_is_named_the_clearest_first(
    index: FixIndex,
) -> None:
    found = named_regressions(index, "0.10.0", "0.11.0", {})
    assert [(entry.fix.number, entry.correction, entry.of) for entry in found] == [
        (27, Correction.REVERT, (13,)),
        (26, Correction.MENTION, (12,)),
        (22, Correction.REGRESSION, ()),
        (20, Correction.SAME_FUNCTION, (11,)),
        (21, Correction.SAME_FUNCTION, (12,)),
    ]
    assert found[0].text.endswith("(in no release yet; takes back vllm#13)")
    assert found[3].to_json()["release"] == "0.11.1"


def test_what_touches_the_deployment_comes_first(index: FixIndex) -> None:
    assert named_regressions(index, "0.10.0", "0.11.0", {"enable_lora": True})[0].fix.number == 21


def test_nothing_is_named_for_unknown_versions_or_if_nothing_is_new(index: FixIndex) -> None:
    assert named_regressions(index, "0.1", "0.11.0", {}) == []
    assert named_regressions(index, "0.11.0", "0.10.0", {}) == []


def test_fixes_after_a_release_are_counted_week_by_week(index: FixIndex) -> None:
    weeks = weeks_after(index, "0.11.0", {})
    assert [week.first_day for week in weeks[:2]] == ["2026-02-01", "2026-02-08"]
    assert [fix.number for fix in weeks[0].fixes] == [20, 21]
    assert [fix.number for fix in weeks[0].taken] == [20] and not weeks[1].taken
    assert weeks[0].subsystems == {"scheduler and KV cache": 1, "LoRA": 1}
    assert patch_releases(index, "0.11.0") == ["0.11.1"]
    assert weeks_after(index, "0.1", {}) == []


def test_only_what_touches_a_deployment_is_counted_with_its_options(index: FixIndex) -> None:
    weeks = weeks_after(index, "0.11.0", {"enable_lora": True})
    assert [fix.number for week in weeks for fix in week.fixes] == [21]
