"""Requests that a real engine keeps after they have ended: none of a stock release, and three
planted leaks are found: in the core, in the front process, and between them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
ENVIRONMENT = "vllm-0.33.0"
SCHEDULER = """
    from vllm.v1.core.sched.scheduler import Scheduler

    class Leaking(Scheduler):
        '''Does not free a running request that is aborted.'''

        def finish_requests(self, request_ids, finished_status):
            for request in [one for one in self.running if one.request_id in request_ids]:
                self.running.remove(request)
                request.status = finished_status
            return super().finish_requests(request_ids, finished_status)
"""
PROBE = """
    def keep_states(engine):
        states = engine.output_processor.request_states
        keep = type("Keep", (dict,), {"pop": dict.get})
        engine.output_processor.request_states = keep(states)

    def tell_nobody(engine):
        async def forget(request_ids):
            pass

        engine.engine_core.abort_requests_async = forget
"""
TESTS = """
    import pytest

    SAMPLING = {"max_tokens": 50, "ignore_eos": True}
    LEAKING = {"scheduler_cls": "leaking.Leaking"}

    def engine(**fields):
        return pytest.mark.vllm_engine(front="async", generation="V1", **fields)

    @engine()
    def test_sound(vllm_engine):
        vllm_engine.generate(["Hello", "you"], SAMPLING, abort_after=[2, None])

    @engine(import_path=["plugins"], extra=LEAKING)
    def test_core(vllm_engine):
        vllm_engine.generate(["Hello", "you"], SAMPLING, abort_after=[2, None])

    @engine()
    def test_front(vllm_engine):
        vllm_engine.call("keep_states")
        vllm_engine.generate(["Hello"], SAMPLING)

    @engine(env={"GIVEN_UP": "1"})
    def test_given_up(vllm_engine):
        vllm_engine.call("tell_nobody")
        vllm_engine.generate(["Hello"], SAMPLING, abort_after=[2])
"""


def test_planted_leaks_are_found(pytester: pytest.Pytester, user_caches: None) -> None:
    pytester.mkdir("plugins")
    pytester.makepyfile(**{"plugins/leaking": SCHEDULER, "probe": PROBE, "test_leak": TESTS})
    options = ("--vllm-env", ENVIRONMENT, "--vllm-leftovers", "requests")
    result = pytester.runpytest_subprocess(*options, "test_leak.py")
    result.assert_outcomes(passed=4, errors=3)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_core*",
            "*HeldRequests: *free blocks: 1 fewer than at the start; *scheduler.requests: 1 (*)",
            "*ERROR at teardown of test_front*",
            "*HeldRequests: *output_processor.request_states: 1 (*)",
            "*ERROR at teardown of test_given_up*",
            "*HeldRequests: *requests given up without an abort in the core: 1 (*)",
        ]
    )
