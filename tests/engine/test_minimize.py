"""``--vllm-minimize`` with real engines."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

TESTS = """
    import pytest

    @pytest.mark.vllm_engine(generation="V1", tp=2, pool=2, backend="xgrammar")
    def test_planted(vllm_engine):
        vllm_engine.check()
        if vllm_engine.spec.tensor_parallel_size == 2:
            vllm_engine.generate("Hello", {"max_tokens": 0})

    @pytest.mark.vllm_engine(generation="V1", tp=2, pool=2)
    def test_fine(vllm_engine):
        vllm_engine.check()
"""


def test_minimize_reports_the_smallest_failing_and_the_largest_working_engine(
    pytester: pytest.Pytester, user_caches: None
) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(
        "--vllm-env",
        "vllm-0.8.5",
        "--vllm-device",
        "sim",
        "--vllm-minimize",
        "-p",
        "no:cacheprovider",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_planted without tokenizer pool: fails",
            "*test_planted without tokenizer pool, tensor parallel: works",
            "*--- minimized ---*",
            "smallest engine that still fails: tensor_parallel_size=2, generation=V1, structured_output_backend=xgrammar",
            "largest engine that works: generation=V1, tokenizer_pool_size=2, structured_output_backend=xgrammar",
            "*max_tokens must be at least 1, got 0*",
            "*an engine that works*",
        ]
    )
    result.stdout.no_fnmatch_line("*test_fine without*")
