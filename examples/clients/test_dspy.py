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
    program = dspy.streamify(dspy.Predict("question -> answer"))

    async def stream():
        return [part async for part in program(question="Capital?")][-1]

    assert asyncio.run(stream()).answer == "Paris"


def test_tools(server):
    call = fields(next_thought="", next_tool_name="weather", next_tool_args='{"city": "Paris"}')
    end = fields(next_thought="", next_tool_name="finish", next_tool_args="{}")
    server.script([call, end, fields(reasoning="It is.", answer="18")])
    assert dspy.ReAct("question -> answer", [weather])(question="Weather?").answer == "18"
