"""The fixtures with real vLLM on the simulated device: axes, front-ends, structured output, errors."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
ENVIRONMENT = "vllm-0.8.5"

TESTS = """
    import pytest
    from pytest_vllm_regress.errors import RemoteError

    @pytest.mark.vllm_engine(generation=["V0", "V1"])
    def test_offline(vllm_engine):
        assert vllm_engine.started.generation == vllm_engine.spec.generation
        (answer,) = vllm_engine.generate("Hello", {"n": 8, "max_tokens": 6, "logprobs": 3, "ignore_eos": True})
        assert [output["index"] for output in answer["outputs"]] == list(range(8))
        for output in answer["outputs"]:
            assert len(output["token_ids"]) == 6 and all(len(step) >= 3 for step in output["logprobs"])

    @pytest.mark.vllm_engine(generation="V1")
    def test_seeds_repeat_and_stop_strings_stop(vllm_engine):
        once, again = (vllm_engine.generate("Hello", {"seed": 3, "max_tokens": 16})[0]["outputs"][0] for _ in range(2))
        assert once["token_ids"] == again["token_ids"]
        first = vllm_engine.generate("Hello", {"temperature": 0, "max_tokens": 8, "ignore_eos": True})[0]["outputs"][0]["text"]
        stopped = vllm_engine.generate("Hello", {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "stop": [first[2]]})[0]["outputs"][0]
        assert stopped["finish_reason"] == "stop" and first[2] not in stopped["text"]

    @pytest.mark.vllm_engine(generation="V1", structured_output_backend="xgrammar")
    def test_schema_is_kept(vllm_engine):
        import json
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        (answer,) = vllm_engine.generate("Hello", {"max_tokens": 60, "structured_outputs": {"json": schema}})
        assert isinstance(json.loads(answer["outputs"][0]["text"])["a"], bool)

    @pytest.mark.vllm_engine(generation="V1")
    def test_a_bad_request_does_not_harm_the_engine(vllm_engine):
        with pytest.raises(RemoteError, match="max_tokens"):
            vllm_engine.generate("Hello", {"max_tokens": 0})
        vllm_engine.check()

    @pytest.mark.vllm_engine(front="async", generation=["V0", "V1"], tp=2, executor="mp", fresh=True)
    def test_two_workers(vllm_engine):
        (stream,) = vllm_engine.generate("Hello", {"max_tokens": 4})
        assert stream[-1]["finished"]

    @pytest.mark.vllm_engine(front="async", generation=["V0", "V1"], pp=2, executor="mp", fresh=True)
    def test_two_stages(vllm_engine):
        (stream,) = vllm_engine.generate("Hello", {"max_tokens": 4})
        assert stream[-1]["finished"]

    @pytest.mark.vllm_engine(generation="V1", tp=[1], pp=[1], pool=[2], max_model_len=256)
    def test_ids(vllm_engine, request):
        assert request.node.callspec.id == "tp1-pp1-pool2"
        assert any("ignores" in note for note in vllm_engine.started.notes)

    @pytest.mark.vllm_engine(generation="V1", extra={"no_such_argument": 1})
    def test_unknown_argument_is_an_error(vllm_engine):
        raise AssertionError("never reached")

    @pytest.mark.vllm_engine(generation="V1", fresh=True, max_model_len=10**6)
    def test_engine_that_cannot_start(request):
        with pytest.raises(RemoteError, match="max_model_len"):
            request.getfixturevalue("vllm_engine")

    @pytest.mark.vllm_engine(generation="V1")
    def test_server(vllm_server):
        import httpx
        assert vllm_server.chat([{"role": "user", "content": "Hello"}], n=3, max_tokens=4)["choices"][2]["index"] == 2
        assert vllm_server.stream_chat([{"role": "user", "content": "Hello"}], max_tokens=4)
        assert httpx.get(vllm_server.base_url + "/models", trust_env=False).status_code == 401
        assert vllm_server.api_key not in " ".join(vllm_server.argv)
"""


@pytest.mark.usefixtures("user_caches")
def test_fixtures_work_on_a_real_vllm(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(
        "-rs", f"--vllm-env={ENVIRONMENT}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=11, skipped=1, errors=1)
    result.stdout.fnmatch_lines([f"*vllm-regress: {ENVIRONMENT}:*simulated device*"])
    result.stdout.fnmatch_lines(["*SKIPPED*pipeline parallelism*"])
    result.stdout.fnmatch_lines(
        ["*no vLLM from * has an engine argument or server option 'no_such_argument'*"]
    )
