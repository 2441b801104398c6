"""The parts of the search: changes of bodies, fields of a description, drawn bodies, causes in
logs, types of clients, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.scaffold import Draft, Unreported, create_case
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.api.api_hunter import ApiFinding
from pytest_vllm_regress.fuzz.api.api_oracle import ApiOutcome, cause, problem, refusal
from pytest_vllm_regress.fuzz.api.api_request import BUSY, ApiReply, ApiRequest
from pytest_vllm_regress.fuzz.api.request_drawing import (
    RequestDrawer,
    bases_of,
    fields,
    operations,
    with_field,
    without_field,
)
from pytest_vllm_regress.fuzz.api.servers import NOT_ASKED
from pytest_vllm_regress.fuzz.draft import draft_from_file
from pytest_vllm_regress.fuzz.finding import Problem, ReplayAnswer
from pytest_vllm_regress.util import codec
from tests.unit.fuzz.api.stand_in import DESCRIPTION, TRACEBACK, chunk

CHAINED = (
    TRACEBACK
    + """
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/site-packages/vllm/v1/engine/async_llm.py", line 8, in generate
    raise EngineGenerateError() from e
vllm.v1.engine.exceptions.EngineGenerateError
"""
)
QUESTION = ApiRequest(
    "text", "POST", "/v1/completions", "/v1/completions", '{"model": "m", "n": "it\'s"}'
)


def test_a_field_is_set_at_any_depth() -> None:
    assert with_field({"a": 1}, ("b", 0, "c"), 2) == {"a": 1, "b": [{"c": 2}]}
    assert with_field({"a": [1, 2]}, ("a", 1), 3) == {"a": [1, 3]}
    assert without_field({"a": [1, {"b": 2, "c": 3}]}, ("a", 1, "b")) == {"a": [1, {"c": 3}]}
    assert without_field({"a": [1, 2]}, ("a", 0)) == {"a": [2]}
    assert without_field({"a": 1}, ("b", "c")) == {"a": 1}


def test_fields_are_found_through_references_and_alternatives_and_end_in_a_recursive_schema() -> (
    None
):
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/components/schemas/Node"}},
    }
    document = {"components": {"schemas": {"Node": node}}}
    schema = {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Node"}]}
    found = fields(
        document, {"type": "object", "properties": {"tree": schema, "list": {"items": schema}}}
    )
    assert {
        ("tree",),
        ("tree", "name"),
        ("tree", "next", "name"),
        ("list", 0),
        ("list", 0, "name"),
    } <= set(found)
    assert max(map(len, found)) == 3


def test_routes_that_suspend_the_engine_have_a_reason() -> None:
    assert "/sleep" not in {operation.route for operation in operations(DESCRIPTION)}
    assert all(NOT_ASKED.values())


@pytest.mark.parametrize(
    ("server", "route"), [("text", "/v1/chat/completions"), ("score", "/v2/rerank")]
)
def test_valid_requests_name_the_model(server: str, route: str) -> None:
    bases = bases_of(server, route)
    assert bases
    assert {base["model"] for base in bases} == {"m"}


def test_schemathesis_draws_bodies_with_described_fields_alone() -> None:
    completions = next(one for one in operations(DESCRIPTION) if one.route == "/v1/completions")
    drawn = RequestDrawer("text", DESCRIPTION).questions(
        completions, 7, 1000, 30
    )  # the sweep has ended by then
    assert drawn == RequestDrawer("text", DESCRIPTION).questions(completions, 7, 1000, 30)
    assert len(drawn) > 15
    described = set(DESCRIPTION["components"]["schemas"]["Request"]["properties"])  # type: ignore[index]
    own = {name for base in bases_of("text", "/v1/completions") for name in base}
    assert {name for question in drawn for name in question.value()} <= described | own


def test_the_cause_is_the_first_exception_of_a_chain() -> None:
    assert cause(CHAINED) == (
        "OverflowError in vllm/entrypoints/serving.py:create",
        "int too big to convert",
    )
    assert cause("INFO: POST /v1/completions 500") == ("", "")


def test_the_clients_accept_right_answers_and_what_openai_itself_sends() -> None:
    assert refusal("/v1/completions", chunk("stop")) == ("", "")
    assert refusal("/v1/completions", chunk(None), event=True) == ("", "")
    vector = {"index": 0, "object": "embedding", "embedding": "AAAA"}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    answer = {"object": "list", "model": "m", "data": [vector], "usage": usage}
    assert refusal("/v1/embeddings", answer) == ("", "")
    assert (
        refusal("/v1/embeddings", {**answer, "usage": None})[0]
        == "CreateEmbeddingResponse: usage: model_type"
    )
    assert refusal("/tokenize", {"anything": 1}) == ("", "")
    key, words = refusal("/v1/completions", chunk("abandoned"))
    assert key == "Completion: choices.*.finish_reason: literal_error"
    assert "'abandoned'" in words
    key, _ = refusal("/v1/messages", {"type": "message_start"}, event=True)
    assert key.startswith("RawMessageStreamEvent: ")
    assert refusal("/v1/messages", {"type": "message_stop"}, event=True) == ("", "")


@pytest.mark.parametrize("status", [200, 400, 404, 501])
def test_refusals_are_no_problems(status: int) -> None:
    assert (
        problem(QUESTION, ApiReply(status, json.dumps(chunk("stop")), "application/json")) is None
    )


def test_an_engine_that_is_at_work_for_long_is_no_problem() -> None:
    assert problem(QUESTION, ApiReply(None, ended=False, failure=BUSY)) is None
    late = problem(QUESTION, ApiReply(None, ended=False, failure="time"))
    assert late is not None and late.kind == ApiOutcome.NO_ANSWER


def test_the_curl_command_quotes_the_body() -> None:
    assert """-d '{"model": "m", "n": "it'"'"'s"}'""" in QUESTION.curl()


def test_the_report_has_what_upstreams_form_asks_for() -> None:
    found = Problem(ApiOutcome.SERVER_ERROR, "HTTP 500: no", "TypeError in vllm/a.py:f")
    finding = ApiFinding(
        environment="vllm-0.33.0",
        versions={"vllm": "0.33.0"},
        question=QUESTION,
        problem=found,
        releases={"0.33.0": ReplayAnswer.STILL_FAILS},
        server_options="vllm serve MODEL",
    )
    text = finding.bug_form()
    assert text.startswith(
        "Title: [Bug]: POST /v1/completions: server error: TypeError in vllm/a.py:f"
    )
    for words in (
        "### Your current environment",
        "### Describe the bug",
        "vllm serve MODEL",
        "curl -sS",
        "Fails in 0.33.0.",
    ):
        assert words in text
    assert "Not searched yet." in text


def test_a_case_is_drafted_from_a_finding_about_the_text_server(tmp_path: Path) -> None:
    found = Problem(ApiOutcome.ENGINE_DEAD, "dead", "ValueError in vllm/a.py:f")
    finding = ApiFinding(
        environment="vllm-0.33.0",
        versions={"vllm": "0.33.0"},
        question=QUESTION,
        problem=found,
    )
    draft, name, tracker, report = draft_from_file(finding.save(tmp_path), Draft())
    assert (tracker, report) == ("https://github.com/vllm-project/vllm/issues", "")
    case = create_case(tmp_path / "cases", Unreported(Path(name).stem, tracker), draft)
    assert case.symptom.kinds == ("engine-death",)
    assert case.affected[0].package == "vllm"
    test = next(case.directory.glob("test_*.py")).read_text()
    compile(test, "test", "exec")
    assert "vllm_leg" in test and "finding.json" in test
    assert (
        json.loads((case.directory / "finding.json").read_text())["question"]["body"]
        == QUESTION.body
    )
    other = codec.replace(finding, question=codec.replace(QUESTION, server="score"))
    with pytest.raises(UsageError, match="for the server text only"):
        draft_from_file(other.save(tmp_path), Draft())
