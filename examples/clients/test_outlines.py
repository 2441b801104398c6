from typing import Literal

import openai
import outlines
import pytest
from scenario import PARIS, City

from pytest_vllm_regress import ScriptError

constrained = pytest.mark.vllm_requires(vllm=">=0.12")  # what outlines asks for


@pytest.fixture(scope="module")
def model(server):
    to = {"base_url": server.base_url, "api_key": server.api_key}
    return outlines.from_vllm(openai.OpenAI(**to), server.model)


def test_an_answer(server, model):
    server.script("Hello!")
    assert model("Hi", max_tokens=20) == "Hello!"


def test_a_stream(server, model):
    server.script(PARIS)
    assert "".join(model.stream("Which city?", City)) == PARIS


@constrained
def test_a_choice(server, model):
    server.script("yes")
    assert model("Sure?", Literal["yes", "no"]) == "yes"


@constrained
def test_a_schema_allows_nothing_else(server, model):
    with pytest.raises(ScriptError, match="allows only"), server.script("Paris"):
        model("Which city?", City, max_tokens=20)
