import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from scenario import CALL, City, weather

from pytest_vllm_regress import Script


@pytest.fixture(scope="module")
def llm(server):
    to = {"model": server.model, "api_base": server.base_url, "api_key": server.api_key}
    return OpenAILike(**to, is_chat_model=True, is_function_calling_model=True)


def test_a_refusal_is_retried(server, llm):
    server.script("Hello!")
    server.fail(status=503, retry_after=0.1)
    assert llm.chat([ChatMessage("Hi")]).message.content == "Hello!"


def test_a_stream(server, llm):
    server.script("Hello!")
    assert [*llm.stream_chat([ChatMessage("Hi")])][-1].message.content == "Hello!"


def test_tools(server, llm):
    server.script(CALL)
    assert str(llm.predict_and_call([FunctionTool.from_defaults(weather)], "Weather?")) == "18"


def test_a_schema(server, llm):
    server.script(Script.tool_call("City", {"name": "Paris"}))
    assert llm.as_structured_llm(City).chat([ChatMessage("Which city?")]).raw.name == "Paris"
