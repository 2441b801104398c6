"""The exercise finds a planted fault in a tree of a release, and nothing in one with a comment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.environments.sources import set_clones
from pytest_vllm_regress.fuzz.exercise import comparison
from pytest_vllm_regress.fuzz.exercise.comparison import compare_exercise
from pytest_vllm_regress.history.patch import plan_comparison
from tests.helpers.environments import require_environment, vllm_sources
from tests.helpers.repositories import RepositoryBuilder

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("user_caches")]
RELEASE = "vllm-0.33.0"
FILE = "vllm/v1/engine/parallel_sampling.py"
SEED = "child_sampling_params.seed = seed + index"


def test_a_comment_changes_nothing_and_a_fault_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_environment(RELEASE)
    files = vllm_sources(RELEASE)
    tree = RepositoryBuilder(tmp_path / "tree")
    tree.commit("The release", files)
    monkeypatch.setattr(comparison, "all_names", lambda: ["plain", "streams", "ending server"])

    def compared(*, base_again: bool) -> comparison.ExerciseComparison:
        plan = plan_comparison(tree.place, (), False, "HEAD", RELEASE)
        names.extend((f"{RELEASE}+vllm@{plan.base.id[:10]}", plan.after))
        return compare_exercise(plan, print, base_again=base_again)

    names: list[str] = []
    try:
        (tree.place / FILE).write_text(files[FILE] + "# a comment\n")
        sound = compared(base_again=True)
        assert (sound.found, sound.unstable) == ((), 0)
        assert sound.compared > 400
        (tree.place / FILE).write_text(files[FILE].replace(SEED, f"{SEED} % 2"))
        faulty = compared(base_again=False)
        assert {one.name.partition("/")[0] for one in faulty.found} == {"plain", "streams"}
        assert not faulty.broken(), "another text is no failure"
    finally:
        set_clones([])
        for name in dict.fromkeys(names):
            assert cli.main(["env", "prune", name]) == 0
