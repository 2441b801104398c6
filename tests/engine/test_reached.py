"""Which functions of a real vLLM the processes of an engine execute."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.history.changed_functions import ChangedFunctions

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]

TEST = """
import pytest

@pytest.mark.vllm_engine(generation="V1")
def test_it(vllm_engine):
    vllm_engine.generate("Hello", {"max_tokens": 2})
"""
FUNCTIONS = {
    "vllm.entrypoints.llm": ("LLM.generate", "LLM.beam_search"),
    "vllm.v1.core.sched.scheduler": ("Scheduler.schedule", "Scheduler.reset_prefix_cache"),
}


def test_front_end_and_core_record_what_they_execute(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile(TEST)
    functions = ChangedFunctions(FUNCTIONS, ())
    with functions.recorded(tmp_path):
        pytester.runpytest_subprocess("--vllm-env=vllm-0.8.5").assert_outcomes(passed=1)
    assert functions.not_executed(tmp_path) == (
        "vllm.entrypoints.llm:LLM.beam_search",
        "vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache",
    )
