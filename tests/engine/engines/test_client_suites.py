"""The suite of a client library on real releases: scripts by request, faults, and the command serve."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.engine
RELEASES = ["vllm-0.8.5", "vllm-0.11.2", "vllm-0.33.0"]
SUITE = """
import json
import anthropic, httpx, openai, pytest
from pytest_vllm_regress import Script, ScriptError

HI = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOL = {"name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]}}
TOOLS = [{"type": "function", "function": TOOL}]
PARSER = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}

@pytest.fixture(scope="session")
def server(vllm_engines):
    return vllm_engines(front="serve", server_options=PARSER)

@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.base_url, api_key=server.api_key)

@pytest.fixture
def ask(server, client):
    return lambda messages=HI, **options: client.chat.completions.create(
        model=server.model, messages=messages, **options)

def test_answers_in_order_and_for_each_choice(server, ask):
    rule = server.script(["one", ("two", "zwei")])
    first = ask()
    assert first.choices[0].message.content == "one"
    assert first.usage.completion_tokens == 4 and first.usage.prompt_tokens < 60
    assert [choice.message.content for choice in ask(n=2).choices] == ["two", "zwei"]
    assert [request.text for request in rule.requests] == ["Hello", "Hello"]

def test_streams_schemas_and_echoes(server, ask, client):
    server.script(["streamed", '{"a": 17}', " you"])
    chunks = ask(stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "streamed"
    assert ask(response_format=FORMAT).choices[0].message.content == '{"a": 17}'
    completion = client.completions.create(model=server.model, prompt="Hello", echo=True)
    assert completion.choices[0].text == "Hello you"

@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get"}}])
def test_a_tool_loop_whatever_the_choice(server, ask, choice):
    server.script({"Hello": [Script.tool_call("get", {"city": "Paris"}), "warm"]})
    for _ in range(2):  # the second is a retry
        message = ask(tools=TOOLS, tool_choice=choice).choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "18"}
    history = [*HI, message.model_dump(exclude_none=True), result]
    assert ask(history, tools=TOOLS).choices[0].message.content == "warm"

def test_faults_leave_the_answers_to_the_retries(server, ask):
    server.script(["one", "two"])
    server.fail(status=429, retry_after=0.1, times=2)
    assert ask().choices[0].message.content == "one"
    server.fail(drop_after=1)
    with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
        list(ask(stream=True))
    assert ask().choices[0].message.content == "two"

def test_an_answer_that_breaks_its_schema_can_be_expected(server, ask):
    with pytest.raises(ScriptError, match="allows only '{'"), server.script("no"):
        ask(response_format=FORMAT, max_tokens=20)

def test_other_routes(server, client):
    answer = "said"
    server.script(lambda request: answer)
    assert server.chat(HI)["choices"][0]["message"]["content"] == answer
    try:
        assert client.responses.create(model=server.model, input="Hello").output_text == answer
        other = anthropic.Anthropic(base_url=server.url, auth_token=server.api_key, api_key=None)
        said = other.messages.create(model=server.model, max_tokens=20, messages=HI)
        assert said.content[0].text == answer
    except (openai.NotFoundError, anthropic.NotFoundError):
        pytest.skip("this release has no such route")

def test_that_causes_a_script_error(server, ask):
    server.script("no")
    ask(response_format=FORMAT, max_tokens=20)

def test_that_causes_none(server, ask):
    assert ask(max_tokens=3)
"""


@pytest.mark.usefixtures("user_caches")
@pytest.mark.parametrize("release", RELEASES)
def test_the_suite_of_a_client_runs_on_a_release(pytester: pytest.Pytester, release: str) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess(
        f"--vllm-env={release}", "-rA", "-p", "no:cacheprovider", timeout=300
    )
    outcomes = result.parseoutcomes()
    assert (outcomes.get("failed"), outcomes["passed"] + outcomes.get("skipped", 0)) == (1, 9)
    result.stdout.fnmatch_lines(
        [
            "*_ test_that_causes_a_script_error _*",
            "the script of request * allows only *",
            "*injected into POST /v1/chat/completions (2 of 2): status=429*",
            "FAILED *::test_that_causes_a_script_error*",
        ]
    )


@contextmanager
def serving(release: str, script: Path, *options: str) -> Iterator[dict[str, str]]:
    """Run the command serve and provide what it says when it is ready."""
    command = [sys.executable, "-m", "pytest_vllm_regress", "serve", release]
    with subprocess.Popen(
        [*command, "--script", str(script), *options], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


JAVASCRIPT = """
import OpenAI from "openai";
const [baseURL, apiKey, model, control] = process.argv.slice(2);
const headers = {Authorization: `Bearer ${apiKey}`};
const order = await fetch(`${control}/fail`, {method: "POST", headers, body: '{"status": 503}'});
const client = new OpenAI({baseURL, apiKey, maxRetries: 1});
const messages = [{role: "user", content: "Hello"}];
const stream = await client.chat.completions.create({model, messages, stream: true});
let said = "";
for await (const chunk of stream) said += chunk.choices[0]?.delta.content ?? "";
console.log(JSON.stringify([order.status, said]));
"""
GO = """
package main

import ("bytes"; "fmt"; "io"; "net/http"; "os")

func main() {
	body := fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": "Hello"}]}`, os.Args[3])
	request, _ := http.NewRequest("POST", os.Args[1]+"/chat/completions", bytes.NewBufferString(body))
	request.Header.Set("Authorization", "Bearer "+os.Args[2])
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil { panic(err) }
	answer, _ := io.ReadAll(response.Body)
	fmt.Println(string(answer))
}
"""


def run_javascript(folder: Path, *arguments: str) -> str:
    """Return the output of a program that uses OpenAI's client for JavaScript."""
    install = ["npm", "install", "--no-audit", "--no-fund", "openai"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot install openai: {done.stderr[-500:]}")
    (folder / "client.mjs").write_text(JAVASCRIPT)
    return subprocess.check_output(
        ["node", "client.mjs", *arguments], cwd=folder, text=True, timeout=60
    )


def run_go(folder: Path, *arguments: str) -> str:
    """Return the output of a program in Go."""
    (folder / "client.go").write_text(GO)
    return subprocess.check_output(
        ["go", "run", "client.go", *arguments], cwd=folder, text=True, timeout=120
    )


@pytest.mark.usefixtures("user_caches")
def test_many_requests_and_orders_of_two_api_servers(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"template": "You said $text"}')
    with serving("vllm-0.11.2", script, "--set", 'server_options={"api_server_count": 2}') as ready:
        answers = asyncio.run(ask_many(ready, 200))
        assert answers == [f"You said {number}" for number in range(200)]
        headers = {"Authorization": f"Bearer {ready['api_key']}"}
        control = ready["control"]
        assert httpx.post(control + "/fail", json={"status": 429}).status_code == 401
        answer = httpx.post(control + "/fail", json={"statuss": 429}, headers=headers)
        assert answer.status_code == 400 and "Did you mean status" in answer.text
        problems = httpx.get(control + "/problems", headers=headers).json()
        assert problems == {"problems": []}


@pytest.mark.usefixtures("user_caches")
@pytest.mark.parametrize(
    ("run", "expected"),
    [(run_javascript, '[200,"You said Hello"]'), (run_go, '"content":"You said Hello"')],
    ids=["javascript", "go"],
)
def test_clients_in_other_languages_are_served(
    tmp_path: Path, run: Callable[..., str], expected: str
) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"template": "You said $text"}')
    if shutil.which("go" if run is run_go else "npm") is None:
        pytest.skip("the language is not installed")
    with serving("vllm-0.8.5", script) as ready:
        names = (ready["base_url"], ready["api_key"], ready["model"], ready["control"])
        assert expected in run(tmp_path, *names)


async def ask_many(ready: dict[str, str], count: int) -> list[str]:
    """Return the answers to numbered requests, of which 64 are sent at a time."""
    limit, headers = asyncio.Semaphore(64), {"Authorization": f"Bearer {ready['api_key']}"}
    async with httpx.AsyncClient(base_url=ready["base_url"], headers=headers, timeout=120) as http:

        async def ask(number: int) -> str:
            messages = [{"role": "user", "content": str(number)}]
            body = {"model": ready["model"], "messages": messages}
            async with limit:
                answer = (await http.post("/chat/completions", json=body)).json()
            return str(answer["choices"][0]["message"]["content"])

        return await asyncio.gather(*map(ask, range(count)))
