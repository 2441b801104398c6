"""``vllm-regress ask``: a probe and a server by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target

PROBE = """
def count(n, word="", table=None):
    import vllm
    return {"n": n + 1, "word": word, "table": table, "vllm": vllm.__version__}

def broken():
    raise RuntimeError("on purpose")
"""
START = "\x1b[36mINFO\x1b[0m the start of the server"
SINCE = '"POST /v1/completions HTTP/1.1" 500 Internal Server Error\rthe traceback'
SERVER = SimpleNamespace(
    root_url="http://127.0.0.1:9",
    base_url="http://127.0.0.1:9/v1",
    api_key="k1",
    model="m",
    log=lambda: "",
    child=SimpleNamespace(
        logs=SimpleNamespace(from_start=lambda: f"{START}\n{SINCE}"), engine_is_dead=False
    ),
)
SAY = "import json, os, sys; print(json.dumps([sys.argv[1:], {n: v for n, v in os.environ.items() if n[:6] in ('VLLM_R', 'OPENAI')}]))"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def probe_file(tmp_path: Path) -> str:
    (tmp_path / "probe.py").write_text(PROBE)
    return str(tmp_path / "probe.py")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[EngineSpec]:
    """Replaces servers; holds the specs that were started."""
    specs: list[EngineSpec] = []

    def start(
        self: Session, front: str, target: Target, spec: EngineSpec, *, user: str, fresh: bool
    ) -> SimpleNamespace:
        assert front == "serve"
        specs.append(spec)
        return SERVER

    monkeypatch.setattr(Session, "start", start)
    return specs


def test_a_probe_s_value_is_printed_as_json(
    affected_target: Path, probe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["n=8", "word=eight=8", 'table={"a": [1]}']
    assert (
        cli.main(["ask", "--env", str(affected_target), "--probe", f"{probe_file}:count", *words])
        == 0
    )
    answer = {"n": 9, "word": "eight=8", "table": {"a": [1]}, "vllm": "0.8.4"}
    assert json.loads(capsys.readouterr().out) == answer
    assert (
        cli.main(
            [
                "ask",
                "--env",
                str(affected_target),
                "--probe",
                f"{probe_file}:count",
                "n=1",
                "word={model}",
            ]
        )
        == 0
    )
    assert "/cache/checkpoints/text-" in json.loads(capsys.readouterr().out)["word"]


def test_a_probe_that_fails_is_shown_with_its_traceback(
    affected_target: Path, probe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ask", "--env", str(affected_target), "--probe", f"{probe_file}:broken"]) == 1
    captured = capsys.readouterr()
    assert "RuntimeError: on purpose" in captured.err
    assert captured.out == ""


def test_a_command_gets_the_server_s_address_and_its_exit_status_is_ours(
    affected_target: Path, started: list[EngineSpec], capfd: pytest.CaptureFixture[str]
) -> None:
    fields = ["--set", "tp=2", "--set", "model=vision", "--set", 'extra={"max_num_seqs": 4}']
    command = [
        sys.executable,
        "-c",
        f"{SAY}; sys.exit(7)",
        "{url}/health",
        '{"model": "{model}"}',
        "Bearer {key}",
    ]
    assert cli.main(["ask", "--env", str(affected_target), *fields, "--", *command]) == 7
    assert started == [
        EngineSpec(tensor_parallel_size=2, model="vision", extra={"max_num_seqs": 4})
    ]
    arguments, variables = json.loads(capfd.readouterr().out)
    assert arguments == ["http://127.0.0.1:9/health", '{"model": "m"}', "Bearer k1"]
    assert (
        variables.items()
        >= {
            "VLLM_REGRESS_URL": SERVER.root_url,
            "VLLM_REGRESS_MODEL": "m",
            "OPENAI_BASE_URL": SERVER.base_url,
            "OPENAI_API_KEY": "k1",
        }.items()
    )


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("command", "status"), [(["sh", "-c", "kill -TERM $$"], 143), (["no-such-command"], 2)]
)
def test_a_command_that_a_signal_ends_or_that_does_not_exist(
    affected_target: Path, command: list[str], status: int
) -> None:
    assert cli.main(["ask", "--env", str(affected_target), "--", *command]) == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --probe FILE:FUNCTION, or after -- the command that asks a server"),
        (["--probe", "probe.py:count", "--", "ls"], "give either"),
        (
            ["--probe", "probe.py:count", "--show-log"],
            "--set and --show-log are about a server, and --probe starts none",
        ),
        (["--probe", "nowhere.py:count"], "there is no file nowhere.py"),
        (["--probe", "lexers:count"], "no built-in module 'lexers'"),
        (["--probe", "parsers:tool_calls", "8"], "'8': write NAME=VALUE"),
        (["--set", "tpp=2", "--", "ls"], "Did you mean tp"),
        (["--device", "tpu", "--", "ls"], "'tpu' is not one of"),
    ],
)
def test_bad_input_ends_with_2(
    affected_target: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ask", "--env", str(affected_target), *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("option", "logged", "dead", "shown"),
    [
        (["--show-log"], "", False, f"{START}\n{SINCE}\n"),
        ([], SINCE, False, f"{SINCE}\n"),
        ([], "slot 500 is free", True, "slot 500 is free\n"),
        ([], "slot 500 is free", False, ""),
    ],
)
def test_the_log_is_shown_as_it_is_when_asked_for_and_after_a_server_error(
    affected_target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    option: list[str],
    logged: str,
    dead: bool,
    shown: str,
) -> None:
    monkeypatch.setattr(SERVER, "log", lambda: logged)
    monkeypatch.setattr(SERVER.child, "engine_is_dead", dead)
    assert cli.main(["ask", "--env", str(affected_target), *option, "--", "true"]) == 0
    printed = capfd.readouterr().err
    assert printed.endswith(shown) and ("500" in printed) is bool(shown)
