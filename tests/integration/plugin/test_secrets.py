"""Ten planted secrets reach no child that did not request them, and no output or file."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import read_results
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.output.table import lines
from tests.integration.plugin.conftest import Demo

SECRETS = {
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkL",
    "OPENAI_API_KEY": "planted-openai-value",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED01",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret/0123456789abcdef",
    "AWS_SESSION_TOKEN": "planted-aws-session",
    "GITHUB_TOKEN": "planted 'quoted\" github",
    "AUTH_HEADER": "Bearer planted-bearer-1",
    "DATABASE_URL": "postgres://me:planted-in-url@db.example.org/x",
    "PROXY": "http://me:planted-proxy-pass@proxy:3128",
    "TLS_PRIVATE_KEY": "-----BEGIN PRIVATE KEY-----\nMIIEplantedkeyline1AAAA\n-----END PRIVATE KEY-----",
}
NEEDLES = (
    "QwErTyUiOp", "planted-openai", "AKIAPLANTED", "planted/aws", "planted-aws", "planted 'quoted", "quoted\\\" github",
    "planted-in-url", "planted-proxy", "MIIEplanted", "planted-bearer", "planted-pass", urllib.parse.quote("planted/aws+secret", safe=""),
)  # fmt: skip
PROBE = """
import json, os, subprocess, sys, time
from vllm_regress_target import Unsupported

def environment(): return sorted(os.environ)
def say(texts):
    for text in texts:
        print("stdout:", text, flush=True)
        print("stderr:", repr(text), json.dumps(text), file=sys.stderr, flush=True)
def raises(texts):
    say(texts)
    raise ValueError("the documented words " + " ".join(texts))
def hangs(texts):
    say(texts)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *texts])
    time.sleep(600)
def cannot(texts): raise Unsupported(" ".join(texts), since="0.9")
def leaves(texts): return subprocess.Popen(["sleep", "600"], start_new_session=True, env={**os.environ, "X": "1"}, stdout=-3).pid
"""
TEST = """
import json, logging, os, sys, urllib.parse
from pathlib import Path
import pytest

SECRETS = json.loads(Path(__file__).with_name("secrets.json").read_text())
HEADER = "Authorization: Bearer planted-bearer-1 password=planted-pass-word"
TEXTS = [*SECRETS.values(), HEADER, urllib.parse.quote(SECRETS["AWS_SECRET_ACCESS_KEY"], safe="")]
FAILING = ["raises", "hangs"]

def test_nothing_is_inherited(vllm_probe):
    assert not set(vllm_probe("environment")) & set(SECRETS)

@pytest.mark.parametrize("function", ["raises", "hangs", "cannot"])
def test_without_a_case(vllm_probe, function):
    print("controller:", *TEXTS)
    logging.getLogger().warning("logged: %s", TEXTS)
    a_local = TEXTS
    vllm_probe(function, timeout=1 if function == "hangs" else 60, texts=TEXTS)

@pytest.mark.vllm_case("demo-1")
@pytest.mark.parametrize("function", ["raises", "hangs", "cannot"])
def test_with_a_case(vllm_probe, vllm_leg, function):
    if vllm_leg == "subject":
        vllm_probe(function, timeout=1 if function == "hangs" else 60, texts=TEXTS)
    else:
        vllm_probe("environment")

@pytest.mark.vllm_case("demo-1")
def test_assertion(vllm_probe):
    assert vllm_probe("environment") == TEXTS

@pytest.fixture
def broken():
    raise RuntimeError(TEXTS)

def test_fixture(vllm_probe, broken):
    pass
"""


def test_ten_planted_secrets_are_nowhere(
    pytester: pytest.Pytester, demo: Demo, affected_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo(test=TEST.replace("{", "{{").replace("}", "}}"))
    (pytester.path / "probe.py").write_text(PROBE)
    (pytester.path / "secrets.json").write_text(json.dumps(SECRETS))
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    ran = pytester.runpytest_subprocess(
        "-vv", "-rA", "--showlocals", "--vllm-report=out.json", "--junitxml=junit.xml", "-o", "junit_logging=all", f"--vllm-env={affected_target}",
        "-p", "no:cacheprovider",
    )  # fmt: skip
    counts = ran.parseoutcomes()
    assert counts["passed"] == 1, "nothing is inherited"
    assert counts["failed"] >= 3
    run = read_results(pytester.path / "out.json")
    outputs = {
        "terminal": ran.stdout.str(),
        "errors": ran.stderr.str(),
        "result file": (pytester.path / "out.json").read_text(),
        "JUnit of pytest": (pytester.path / "junit.xml").read_text(),
        "JUnit": junit_xml(run),
        "Markdown": markdown_text(run),
        "page": page(run),
        "table": "\n".join(lines(run)),
    }
    shown = {
        name: [needle for needle in NEEDLES if needle in text] for name, text in outputs.items()
    }
    assert not {name: needles for name, needles in shown.items() if needles}
    dossiers = " ".join(result.dossier for result in run.results)
    for words in ("stdout:", "stderr:", "== dossier", "the documented words", "***"):
        assert words in dossiers, "the outputs that were searched hold what the child said"


def test_a_secret_that_a_child_is_given_reaches_it_and_is_hidden(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    pytester.makepyfile(
        probe="import os\ndef value(): return os.environ['MY_TOKEN']\ndef fail(): raise ValueError(os.environ['MY_TOKEN'])",
        test_given="""
        def test_given(vllm_env, request):
            from pytest_vllm_regress.engines.processes.agent import Agent
            from pytest_vllm_regress.util.deadline import Deadline
            from pytest_vllm_regress.util.rundir import RunDir
            run = RunDir.create()
            agent = Agent(vllm_env.python, run)
            agent.start(Deadline.after("import", 60))
            child = agent.start_child("probe", Deadline.after("start", 60), environment={"MY_TOKEN": "".join(["handed-", "over"])})
            file = str(request.path.with_name("probe.py"))
            ask = lambda name: child.request("call", Deadline.after("probe", 20), file=file, function=name, arguments={})
            try:
                assert ask("value") == "handed-" + "over"
                ask("fail")
            finally:
                child.kill(); agent.stop(); run.remove()
        """,
    )
    ran = pytester.runpytest_subprocess(
        "--showlocals", f"--vllm-env={affected_target}", "-p", "no:cacheprovider"
    )
    assert ran.parseoutcomes() == {"failed": 1}
    ran.stdout.fnmatch_lines(["*ValueError: [*][*][*]*"])
    assert "handed-over" not in ran.stdout.str()
