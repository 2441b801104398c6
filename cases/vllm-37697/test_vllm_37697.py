"""vllm-project/vllm#37697: instructions of a stored response carry over to the next response"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import AtWork, Script, Server

pytestmark = [
    pytest.mark.vllm_case("vllm-37697"),
    pytest.mark.vllm_engine(front="serve", generation="V1", env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}),
]


def test_instructions_end_with_their_response(vllm_server: Server, vllm_at_work: AtWork) -> None:
    """A second response has the same prompt, whether or not the first had instructions."""
    plain = input_tokens_of_two_turns(vllm_server)
    instructed = input_tokens_of_two_turns(vllm_server, instructions="Answer like a pirate of the seventeenth century.")
    vllm_at_work("the instructions are part of the first prompt", instructed[0] > plain[0])
    vllm_at_work("the first turn is part of the second prompt", plain[1] > plain[0])
    carried = instructed[1] - plain[1]
    assert carried == 0, f"the instructions of the first response take {carried} tokens of the second"


def input_tokens_of_two_turns(server: Server, **first_only: Any) -> tuple[int, int]:
    """Return the sizes of the prompts of a stored response and of one that continues it."""
    first = server.respond(Script.text("4").prompt("2 + 2?"), max_output_tokens=20, **first_only)
    second = server.respond("And 3 + 3?", max_output_tokens=20, previous_response_id=first["id"])
    return prompt_tokens(first), prompt_tokens(second)


def prompt_tokens(response: dict[str, Any]) -> int:
    """Return the size of a response's prompt. 0.10.0 calls it as the older APIs do."""
    usage: dict[str, int] = response["usage"]
    return usage["input_tokens"] if "input_tokens" in usage else usage["prompt_tokens"]
