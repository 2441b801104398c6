import asyncio

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenario import CALL, LOOP, City, weather

from pytest_vllm_regress import Script


@pytest.fixture
def model(server):
    provider = OpenAIProvider(base_url=server.base_url, api_key=server.api_key)
    return OpenAIChatModel(server.model, provider=provider)


def test_tools(server, model):
    server.script(LOOP)
    assert Agent(model, tools=[weather]).run_sync("Weather?").output == "18 degrees"


def test_a_stream(server, model):
    server.script({"": "Hello!"})

    async def stream():
        async with Agent(model).run_stream("Hi") as result:
            return [text async for text in result.stream_text(delta=True)]

    assert "".join(asyncio.run(stream())) == "Hello!"


def test_a_tool_that_asks_again(server, model):
    def weather(city: str) -> str:
        raise ModelRetry("no such city")

    server.script({"": [CALL, "I give up"]})
    assert Agent(model, tools=[weather]).run_sync("Weather?").output == "I give up"


def test_a_schema(server, model):
    server.script(Script.tool_call("final_result", {"name": "Paris"}))
    assert Agent(model, output_type=City).run_sync("Which city?").output.name == "Paris"
