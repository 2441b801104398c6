import asyncio

import dspy
import pytest
from scenario import weather


def fields(**values):
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items())


@pytest.fixture(autouse=True)
def lm(server):
    to = {"api_base": server.base_url, "api_key": server.api_key}
    with dspy.context(lm=dspy.LM(f"openai/{server.model}", cache=False, **to)):
        yield


def test_a_signature(server):
    server.script(fields(answer="Paris"))
    assert dspy.Predict("question -> answer")(question="Capital?").answer == "Paris"


def test_another_format_is_tried(server):
    server.script(["no format", '{"answer": "Paris"}'])
    assert dspy.Predict("question -> answer")(question="Capital?").answer == "Paris"


def test_a_stream(server):
    server.script(fields(answer="Paris"))
    program = dspy.Predict("question -> answer")
    listeners = [dspy.streaming.StreamListener("answer")]

    async def stream():
        parts = dspy.streamify(program, stream_listeners=listeners)(question="Capital?")
        return [part async for part in parts]

    assert asyncio.run(stream())[-1].answer == "Paris"


def test_tools(server):
    call = {"next_tool_name": "weather", "next_tool_args": '{"city": "Paris"}'}
    end = {"next_tool_name": "finish", "next_tool_args": "{}"}
    said = [fields(next_thought="I ask", **call), fields(next_thought="I know", **end)]
    server.script([*said, fields(reasoning="It said so", answer="18 degrees")])
    agent = dspy.ReAct("question -> answer", tools=[weather])
    assert agent(question="Weather?").answer == "18 degrees"
