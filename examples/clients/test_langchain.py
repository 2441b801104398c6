import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scenario import LOOP, PARIS, City, weather


@pytest.fixture(scope="module")
def chat(server):
    return ChatOpenAI(model=server.model, base_url=server.base_url, api_key=server.api_key)


def test_a_timeout_is_retried(server, chat):
    server.script("Hello!")
    server.fail(delay_first_token=5)
    assert chat.invoke("Hi", timeout=1).content == "Hello!"


def test_a_stream(server, chat):
    server.script("Hello!")
    assert "".join(chunk.content for chunk in chat.stream("Hi")) == "Hello!"


def test_tools(server, chat):
    server.script(LOOP)
    bound = chat.bind_tools([tool(weather)])
    called = bound.invoke([("user", "Hi")])
    result = tool(weather).invoke(called.tool_calls[0])
    assert bound.invoke([("user", "Hi"), called, result]).content == "18 degrees"


def test_a_schema(server, chat):
    server.script(PARIS)
    cities = chat.with_structured_output(City, method="json_schema")
    assert cities.invoke("Which city?").name == "Paris"
