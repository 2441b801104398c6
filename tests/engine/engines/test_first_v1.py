"""V1 of the first releases that have it, on the simulated device."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.recipes import find_file, load

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TESTS = """
    import pytest

    SAMPLING = {"max_tokens": 8, "ignore_eos": True}
    GREEDY = {"temperature": 0}
    SETTINGS = [GREEDY, {"seed": 1}, {"seed": 1}, {**GREEDY, "repetition_penalty": 1.3}, {"top_p": 0.5}]
    RESULTS_OF_8 = {results}

    def check(answers, n):
        finals = [answer[-1] if isinstance(answer, list) else answer for answer in answers]
        assert [len(final["outputs"]) for final in finals] == [n] * len(answers)
        assert all(len(output["token_ids"]) == 8 for final in finals for output in final["outputs"])

    @pytest.mark.vllm_engine(generation="V1")
    def test_a_batch_answers_as_single_requests_do(vllm_engine):
        settings = [{**SAMPLING, **each} for each in SETTINGS]
        single = [vllm_engine.generate("Hello", each)[0]["outputs"] for each in settings]
        batch = [answer["outputs"] for answer in vllm_engine.generate(["Hello"] * 5, settings)]
        assert [outputs[0]["token_ids"] for outputs in batch[:4]] == [
            outputs[0]["token_ids"] for outputs in single[:4]
        ]
        assert batch[1][0]["token_ids"] == batch[2][0]["token_ids"]

    @pytest.mark.vllm_engine(generation="V1", tp=[1, 2])
    def test_offline(vllm_engine):
        check(vllm_engine.generate(["Hello", "Yes"], {**SAMPLING, "n": 8}), RESULTS_OF_8)

    @pytest.mark.vllm_engine(generation="V1", front="async", tp=[1, 2])
    def test_async(vllm_engine):
        check(vllm_engine.generate("Hello", SAMPLING), 1)

    @pytest.mark.vllm_engine(generation="V1", front="serve")
    def test_server(vllm_server):
        answer = vllm_server.chat([{"role": "user", "content": "Hi"}], n=8, max_tokens=8)
        assert len(answer["choices"]) == RESULTS_OF_8

    @pytest.mark.vllm_engine(generation="V0")
    def test_v0_runs_too(vllm_engine):
        check(vllm_engine.generate("Hello", {**SAMPLING, "n": 2}), 2)
"""


@pytest.mark.parametrize(
    ("release", "results_of_8"),
    [("0.7.0", 1), ("0.7.1", 1), ("0.7.2", 1), ("0.8.1", 8), ("0.8.2", 8)],  # V1 of 0.7 ignores n
)
def test_both_engines_run(
    release: str, results_of_8: int, pytester: pytest.Pytester, user_caches: None
) -> None:
    recipe = load(find_file()).resolve(f"vllm-{release}")
    if EnvironmentCache().built(recipe) is None:
        pytest.skip(f"vllm-{release} is not built: vllm-regress env build vllm-{release}")
    pytester.makepyfile(TESTS.replace("{results}", str(results_of_8)))
    result = pytester.runpytest_subprocess("--vllm-env", recipe.name)
    result.assert_outcomes(passed=7)
