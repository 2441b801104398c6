"""vLLM's Python and Rust front ends on the same requests: where they agree, and the differences
that the documentation lists."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENVIRONMENT = "vllm-0.33.0"
TESTS = """
    import pytest

    PYTHON, RUST = "0", "1"

    @pytest.fixture(scope="module", params=[PYTHON, RUST], ids=["python", "rust"])
    def front_end(request):
        return request.param

    @pytest.fixture(scope="module")
    def server(front_end, vllm_engines):
        server = vllm_engines(
            front="serve",
            generation="V1",
            env={"VLLM_USE_RUST_FRONTEND": front_end},
            server_options={"enable_scale_out": True},
        )
        assert ("rust_frontend_version" in server.get("/version").json()) == (front_end == RUST)
        yield server
        vllm_engines.discard(server)

    def complete(server, **fields):
        return server.post("/v1/completions", {"model": server.model, "prompt": "Hello", "temperature": 0, **fields})

    def chat(server, **fields):
        body = {"model": server.model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, **fields}
        return server.post("/v1/chat/completions", body)

    TEXTS = {}

    def test_both_give_the_same_texts(server, front_end):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
        TEXTS[front_end] = [
            complete(server, max_tokens=9).json()["choices"][0]["text"],
            complete(server, max_tokens=2, echo=True).json()["choices"][0]["text"],
            chat(server, max_tokens=9).json()["choices"][0]["message"]["content"],
            chat(server, max_tokens=60, response_format=form).json()["choices"][0]["message"]["content"],
        ]
        assert all(TEXTS[front_end])
        assert front_end == PYTHON or TEXTS[RUST] == TEXTS[PYTHON]

    def test_both_refuse_a_wrong_value_and_an_unknown_model(server):
        assert complete(server, temperature=-1).status_code == 400
        assert server.post("/v1/completions", {"model": "none", "prompt": "Hello"}).status_code == 404

    def test_both_generate_from_tokens(server):
        body = {"model": server.model, "token_ids": [72, 101, 108], "sampling_params": {"max_tokens": 3}}
        response = server.post("/inference/v1/generate", body)
        assert response.status_code == 200, response.text
        assert len(response.json()["choices"][0]["token_ids"]) == 3

    STATUS = {
        "/ping": {PYTHON: 200, RUST: 404},
        "/openapi.json": {PYTHON: 200, RUST: 404},
    }

    @pytest.mark.parametrize("path", STATUS)
    def test_addresses_of_only_one(server, front_end, path):
        assert server.get(path).status_code == STATUS[path][front_end]

    def test_requests_that_only_one_accepts(server, front_end):
        answers = {
            "several prompts": complete(server, prompt=["Hello", "Bye"], max_tokens=2),
            "more tokens than fit": complete(server, max_tokens=10**6),
            "responses": server.post("/v1/responses", {"model": server.model, "input": "Hello", "max_output_tokens": 4}),
            "messages": server.post(
                "/v1/messages",
                {"model": server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
            ),
        }
        assert {name: answer.status_code for name, answer in answers.items()} == {
            PYTHON: {"several prompts": 200, "more tokens than fit": 400, "responses": 200, "messages": 200},
            RUST: {"several prompts": 400, "more tokens than fit": 200, "responses": 404, "messages": 501},
        }[front_end]
"""


def test_front_ends_agree_but_where_documented(
    pytester: pytest.Pytester, user_caches: None
) -> None:
    pytester.makepyfile(test_front_ends=TESTS)
    result = pytester.runpytest_subprocess(
        "--vllm-env", ENVIRONMENT, "--vllm-leftovers=fail", "test_front_ends.py"
    )
    result.assert_outcomes(passed=12)
