"""Batch files on the simulated device, run by vLLM itself: as a module in an old release, and as a
subcommand in the newest one."""

from __future__ import annotations

import pytest

from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]

TEST = """
    import pytest
    from pytest_vllm_regress import RemoteError, Script

    OPTIONS = ["--max-model-len", "256"]

    def request(name, model, content):
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 20}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}

    def test_batch(vllm_probe, vllm_model_path):
        lines = [request("scripted", vllm_model_path, Script.text("one two").prompt()), request("lost", "nobody", "Hello")]
        batch = vllm_probe("batch_files:run", model=vllm_model_path, lines=lines, options=OPTIONS)
        answers = {answer["custom_id"]: answer["response"] for answer in batch["answers"]}
        assert batch["status"] == 0 and {name: answer["status_code"] for name, answer in answers.items()} == {"scripted": 200, "lost": 404}
        assert answers["scripted"]["body"]["choices"][0]["message"]["content"] == "one two"
        with pytest.raises(RemoteError, match="Invalid JSON"):
            vllm_probe("batch_files:run", model=vllm_model_path, lines=["{nonsense"], options=OPTIONS)
"""


@pytest.mark.parametrize("environment", ["vllm-0.8.5", "vllm-0.33.0"])
def test_a_batch_is_answered_and_a_broken_line_is_an_error(
    pytester: pytest.Pytester, environment: str
) -> None:
    require_environment(environment)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess(
        f"--vllm-env={environment}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1)
