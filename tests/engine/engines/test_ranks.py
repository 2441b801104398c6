"""Data-parallel ranks of a real server: which one serves a request, and one that is stopped or
killed."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENVIRONMENT = "vllm-0.33.0"
TESTS = """
    import signal
    import httpx
    import pytest

    BODY = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}

    def served(server, rank):
        before = server.tokens_by_rank()
        answer = server.post("/v1/completions", {"model": server.model, **BODY}, rank=rank)
        assert answer.status_code == 200, answer.text
        after = server.tokens_by_rank(at_least=sum(before.values()) + 4)
        return {rank: count - before.get(rank, 0) for rank, count in after.items() if count != before.get(rank, 0)}

    @pytest.mark.vllm_engine(front="serve", dp=2, server_options=[{}, {"api_server_count": 2}])
    def test_a_request_is_served_by_the_rank_that_it_names(vllm_server):
        assert [served(vllm_server, rank) for rank in (0, 1, 1)] == [{0: 4}, {1: 4}, {1: 4}]

    @pytest.mark.vllm_engine(front="serve", dp=2)
    def test_a_stopped_rank_does_not_answer_and_the_other_one_does(vllm_server):
        cores = [process for process in vllm_server.processes() if process.role == "core"]
        assert [core.rank for core in cores] == [0, 1], vllm_server.processes()
        assert vllm_server.signal(signal.SIGSTOP, "core", rank=1).pid == cores[1].pid
        assert served(vllm_server, 0) == {0: 4}
        body = {"model": vllm_server.model, **BODY}
        with pytest.raises(httpx.ReadTimeout):
            vllm_server.client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": "1"}, timeout=3)

    @pytest.mark.vllm_engine(front="serve", dp=2)
    def test_a_killed_rank_ends_the_server(vllm_server):
        killed = vllm_server.signal(signal.SIGKILL, "core", rank=1)
        assert killed.rank == 1 and killed.name.endswith("_DP1")
        vllm_server.wait_for_exit(60, all_processes=True)
        assert not any(process.alive for process in vllm_server.processes() if process.role != "helper")
"""


def test_ranks_are_named_stopped_and_killed(pytester: pytest.Pytester, user_caches: None) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("--vllm-env", ENVIRONMENT)
    result.assert_outcomes(passed=4)
