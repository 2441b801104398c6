import instructor
import openai
import pytest
from scenario import HI, PARIS, City

from pytest_vllm_regress import Script, ScriptError


def cities(server, mode):
    wrapped = openai.OpenAI(base_url=server.base_url, api_key=server.api_key)
    return instructor.from_openai(wrapped, mode=mode, model=server.model).chat.completions


def test_a_tool_is_the_schema(server):
    server.script(Script.tool_call("City", {"name": "Paris"}))
    city = cities(server, instructor.Mode.TOOLS).create(messages=HI, response_model=City)
    assert city.name == "Paris"


def test_an_invalid_answer_is_asked_again(server):
    rule = server.script(['{"city": "Paris"}', PARIS])
    chat = cities(server, instructor.Mode.JSON)
    assert chat.create(messages=HI, response_model=City, max_retries=1).name == "Paris"
    assert "Field required" in rule.requests[1].conversation


def test_a_stream(server):
    server.script(PARIS)
    chat = cities(server, instructor.Mode.JSON_SCHEMA)
    assert [*chat.create_partial(messages=HI, response_model=City)][-1].name == "Paris"


def test_the_grammar_allows_nothing_else(server):
    chat = cities(server, instructor.Mode.JSON_SCHEMA)
    with pytest.raises(ScriptError, match="allows only"), server.script("Paris"):
        chat.create(messages=HI, response_model=City, max_retries=0, max_tokens=20)
