import httpx
import openai
import pytest
from scenario import HI, LOOP, PARIS, TOOLS, City


@pytest.fixture(scope="module")
def chat(server):
    return openai.OpenAI(base_url=server.base_url, api_key=server.api_key).chat.completions


def test_a_refusal_is_retried(server, chat):
    server.script("Hello!")
    server.fail(status=429, retry_after=0.1, times=2)
    assert chat.create(model=server.model, messages=HI).choices[0].message.content == "Hello!"


def test_a_stream_that_breaks(server, chat):
    server.script("Hello!")
    server.fail(drop_after=1)
    with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
        list(chat.create(model=server.model, messages=HI, stream=True))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools(server, chat, choice):
    server.script(LOOP)
    asked = {"model": server.model, "tools": TOOLS}
    message = chat.create(messages=HI, tool_choice=choice, **asked).choices[0].message
    call = message.tool_calls[0]
    assert call.function.arguments == '{"city": "Paris"}'
    result = {"role": "tool", "tool_call_id": call.id, "content": "18"}
    answer = chat.create(messages=[*HI, message, result], **asked)
    assert answer.choices[0].message.content == "18 degrees"


def test_a_schema(server, chat):
    server.script(PARIS)
    answer = chat.parse(model=server.model, messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Paris")
