import anthropic
import pytest
from scenario import HI, LOOP, PARAMETERS

pytestmark = pytest.mark.vllm_requires(vllm=">=0.11.1")  # the route /v1/messages


@pytest.fixture(scope="module")
def ask(server):
    client = anthropic.Anthropic(base_url=server.url, auth_token=server.api_key, api_key=None)
    asked = {"model": server.model, "max_tokens": 200, "messages": HI}
    return lambda **options: client.messages.create(**asked | options)


def test_an_overload_is_retried(server, ask):
    server.script("Hello!")
    server.fail(status=529, retry_after=0.1)
    assert ask().content[0].text == "Hello!"


@pytest.mark.vllm_requires(vllm=">=0.12")  # 0.11.2 sometimes ends a stream after one delta
def test_a_stream(server, ask):
    server.script("Hello!")
    deltas = [event.delta for event in ask(stream=True) if event.type == "content_block_delta"]
    assert "".join(delta.text for delta in deltas) == "Hello!"


def test_tools(server, ask):
    server.script(LOOP)
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    (call,) = [block for block in ask(tools=tools).content if block.type == "tool_use"]
    assert call.input == {"city": "Paris"}
    said = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]
    result = [{"type": "tool_result", "tool_use_id": call.id, "content": "18"}]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": result}]
    assert ask(tools=tools, messages=HI + turns).content[0].text == "18 degrees"


def test_an_unknown_model(ask):
    with pytest.raises(anthropic.NotFoundError):
        ask(model="other")
