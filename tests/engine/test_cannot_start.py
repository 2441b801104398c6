"""An engine that cannot start fails within the deadline with vLLM's message and does not harm the
next test."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
ENVIRONMENT = "vllm-0.8.5"

TESTS = """
    import os, socket
    import pytest
    from pytest_vllm_regress.engines import session
    from pytest_vllm_regress.errors import ChildError

    def refused(request, fixture, words):
        with pytest.raises(ChildError) as caught:
            request.getfixturevalue(fixture)
        assert caught.value.kind != "hang" and words in caught.value.args[0], str(caught.value)

    WRONG = [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"dtype": "float3"}, "float3"),
        ({"extra": {"gpu_memory_utilization": 1e-7}}, "KV cache"),
        ({"tensor_parallel_size": 64}, "divisible by tensor parallel size (64)"),
        ({"max_model_len": 10**6}, "max_model_len"),
    ]
    @pytest.mark.parametrize("engine_spec, words", WRONG, indirect=["engine_spec"])
    @pytest.mark.vllm_engine(generation="V1", fresh=True)
    def test_engine(request, engine_spec, words):
        refused(request, "vllm_engine", words)

    @pytest.mark.parametrize("engine_spec, words", WRONG[1:3], indirect=["engine_spec"])
    @pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
    def test_server(request, engine_spec, words):
        refused(request, "vllm_server", words)

    @pytest.mark.vllm_engine(front="serve", generation="V1", fresh=True)
    def test_port_is_taken(request, monkeypatch):
        lease = session.lease_port()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", lease.number))
            taken.listen()
            monkeypatch.setattr(session, "lease_port", lambda: lease)
            refused(request, "vllm_server", f"process {os.getpid()} (")

    @pytest.mark.vllm_engine(generation="V1")
    def test_next_one_is_unharmed(vllm_engine):
        vllm_engine.check()
"""


@pytest.mark.usefixtures("user_caches")
def test_start_errors_have_vllms_message_and_harm_no_other_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    arguments = (
        f"--vllm-env={ENVIRONMENT}",
        "--vllm-leftovers=fail",
        "--vllm-timeout=start=60",
        "--vllm-timeout=ready=60",
    )
    result = pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=9)
