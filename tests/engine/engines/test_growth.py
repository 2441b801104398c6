"""Growth of a real server's memory: a scheduler that keeps a quarter of a megabyte of each request
is found in the core, and only there.

The same holds for each kind of request in docs/generated/growth.md.
"""

from __future__ import annotations

import pytest

from pytest_vllm_regress.surveys.states.growth import KINDS

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENVIRONMENT = "vllm-0.33.0"
LEAK = 256 * 1024
SCHEDULER = f"""
    from vllm.v1.core.sched.scheduler import Scheduler

    class Leaking(Scheduler):
        kept = []

        def add_request(self, request, *args, **kwargs):
            self.kept.append(bytearray(b"x" * {LEAK}))
            return super().add_request(request, *args, **kwargs)
"""
TESTS = f"""
    import pytest
    from pytest_vllm_regress import measure_growth
    from pytest_vllm_regress.surveys.states.growth import KINDS, observe

    pytestmark = pytest.mark.vllm_engine(
        front="serve", generation="V1", import_path=["plugins"], extra={{"scheduler_cls": "leaking.Leaking"}}
    )

    def test_growth(vllm_server):
        body = {{"model": vllm_server.model, "prompt": "Hello", "max_tokens": 1}}
        growth = measure_growth(
            vllm_server, lambda number: vllm_server.post("/v1/completions", body), requests=120, readings=12, warm_up=40
        )
        assert growth["core"].uss.low <= {LEAK} * 1.1 and growth["core"].uss.high >= {LEAK} * 0.9, growth["core"].uss
        assert growth["core"].uss.grows
        assert growth["server"].uss.high < {LEAK} / 2, growth["server"].uss

    @pytest.mark.parametrize("kind", KINDS)
    def test_row(vllm_server, kind):
        row = observe(vllm_server, kind, requests=40, warm_up=10)
        assert len(row.runs) == 2 and "core" in row.growing, row
        assert all(run.slopes["core"].high >= {LEAK} / 2 for run in row.runs), row  # after ten requests, other memory may still be freed
"""


def test_a_leak_of_the_core_is_measured(pytester: pytest.Pytester, user_caches: None) -> None:
    pytester.mkpydir("plugins").joinpath("__init__.py").unlink()
    pytester.makepyfile(**{"plugins/leaking": SCHEDULER, "test_leak": TESTS})
    result = pytester.runpytest_subprocess("--vllm-env", ENVIRONMENT, "test_leak.py")
    result.assert_outcomes(passed=1 + len(KINDS))
