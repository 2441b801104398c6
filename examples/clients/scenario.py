"""What the tests of all clients ask, and what the model says."""

from pydantic import BaseModel

from pytest_vllm_regress import Script


class City(BaseModel):
    name: str


def weather(city: str) -> str:
    """Return the temperature in a city."""
    return "18"


CALL = Script.tool_call("weather", {"city": "Paris"})
LOOP = {"": [CALL, "18 degrees"]}  # by turn: a retry gets the same answer again
PARIS = '{"name": "Paris"}'
HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
