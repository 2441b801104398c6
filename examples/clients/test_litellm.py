import litellm
import pytest
from scenario import CALL, HI, TOOLS


@pytest.fixture(scope="module")
def to(server):
    to = {"model": f"hosted_vllm/{server.model}", "messages": HI}
    return {**to, "api_base": server.base_url, "api_key": server.api_key}


def test_a_refusal_is_retried(server, to):
    server.script("Hello!")
    server.fail(status=503)
    assert litellm.completion(**to, num_retries=1).choices[0].message.content == "Hello!"


def test_a_stream(server, to):
    server.script("Hello!")
    chunks = litellm.completion(**to, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"


# vllm-31501: before 0.19 the hermes parser loses arguments that arrive in one delta
@pytest.mark.vllm_requires(vllm=">=0.19", cause="failure")
def test_tools_in_a_stream(server, to):
    server.script(CALL)
    chunks = list(litellm.completion(**to, tools=TOOLS, stream=True))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert call.function.arguments == '{"city": "Paris"}'


def test_an_unknown_model(to):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**to | {"model": "hosted_vllm/other"})
