"""How a run behaves: workers, selection, collection, what is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.cases import results
from tests.helpers import ROOT
from tests.integration.plugin.conftest import Demo

TWO = """
import pytest
pytestmark = pytest.mark.vllm_case("demo-1")

@pytest.mark.parametrize("function", ["raises", "fine"])
def test_demo(vllm_probe, vllm_leg, function):
    assert vllm_probe(function if vllm_leg == "subject" else "fine", timeout=60) == 8
"""


@pytest.mark.slow
def test_two_workers_and_two_environments(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path, fixed_target: Path
) -> None:
    demo("raises")
    done = pytester.runpytest_inprocess(
        "-n2",
        f"--vllm-env={affected_target}",
        f"--vllm-env={fixed_target}",
        "--vllm-report=out.json",
    )
    done.assert_outcomes(xfailed=1, failed=1)
    assert len(results.read_results(pytester.path / "out.json").results) == 2
    done.stdout.fnmatch_lines_random(["*documented failures*", "REGRESSED*", "REPRODUCED*"])


HANGS = """
import pytest

def test_plain():
    pass

@pytest.mark.vllm_case("demo-1", variant="other")
def test_clean(vllm_probe):
    assert vllm_probe("fine", timeout=60) == 8

@pytest.mark.vllm_case("demo-1")
def test_hangs(vllm_probe, vllm_leg):
    function, seconds = ("hangs", 1) if vllm_leg == "subject" else ("fine", 60)
    assert vllm_probe(function, timeout=seconds) == 8
"""


def test_workers_start_with_tests_that_may_hang(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(kind="hang", test=HANGS)
    option = f"--vllm-env={affected_target}"
    order = ["test_hangs", "test_plain", "test_clean"]
    for more, expected in ((("-n1",), order), (("-n0",), [*order[1:], order[0]])):
        done = pytester.runpytest_inprocess(option, *more, "-v")
        done.assert_outcomes(passed=2, xfailed=1)
        done.stdout.fnmatch_lines([f"*::{name}*" for name in expected])


def test_newer_version_than_any_tried_runs_with_a_warning(
    demo: Demo, pytester: pytest.Pytester, make_target: Callable[..., Path]
) -> None:
    demo("fine")
    done = pytester.runpytest_inprocess(f"--vllm-env={make_target(vllm='99.1')}")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*warning: vLLM 99.1 is newer than*"])


@pytest.mark.slow
def test_first_failure_last_failed_and_selection(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo(test=TWO.replace("{", "{{").replace("}", "}}"))
    option = f"--vllm-env={affected_target}"
    pytester.runpytest_inprocess(option).assert_outcomes(xfailed=1, failed=1)
    pytester.runpytest_inprocess(option, "--lf").assert_outcomes(failed=1)
    pytester.runpytest_inprocess(option, "-k", "raises").assert_outcomes(xfailed=1, deselected=1)
    pytester.runpytest_inprocess(option, "-x", "-k", "fine").assert_outcomes(failed=1, deselected=1)


def test_header_names_versions_and_device(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("raises")
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}", "--collect-only")
    done.stdout.fnmatch_lines(["vllm-regress: *vllm 0.8.4*device sim (simulated device*"])


def test_axes_become_readable_ids(pytester: pytest.Pytester, affected_target: Path) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.vllm_engine(tp=[1, 2], pp=1, pool=[0, 2], generation=['V0', 'V1'])\ndef test_it(engine_spec):\n    pass\n"
    )
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}", "--collect-only", "-q")
    done.stdout.fnmatch_lines(["*test_it[[]tp2-pool2-V1[]]"])
    assert done.stdout.str().count("test_it[") == 8


def test_collecting_the_cases_imports_no_vllm() -> None:
    code = "import sys, pytest; pytest.main(['--collect-only', '-q', 'cases']); sys.exit(bool({'vllm', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "test_vllm_17173.py::test_offline[text-generate-8]" in done.stdout


def test_plugin_is_light_where_it_is_not_used(pytester: pytest.Pytester) -> None:
    heavy = (
        "numpy",
        "httpx",
        "rich",
        "jsonschema",
        "psutil",
        "typer",
        "safetensors",
        "pytest_vllm_regress.engines.session",
    )
    pytester.makepyfile(
        f"import sys\n\ndef test_it():\n    assert not set({heavy!r}) & set(sys.modules)\n"
    )
    options = ["-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:timeout"]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)


FORKS = """
import os, pytest, sys
pytestmark = pytest.mark.vllm_case("demo-1")

@pytest.mark.parametrize("end", ["returns", "exits", "fails"])
def test_forks(vllm_probe, end):
    child = os.fork()
    if child == 0:
        if end == "returns":
            return
        sys.exit(3) if end == "exits" else pytest.fail("in the child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == dict(returns=0, exits=3, fails=1)[end]
    assert vllm_probe("fine", timeout=60) == 8

@pytest.mark.parametrize("seconds", [-1, float("nan"), "5"])
def test_timeouts(vllm_probe, seconds):
    vllm_probe("fine", timeout=seconds)
"""


def test_forked_children_end_and_wrong_timeouts_are_refused(
    demo: Demo, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    """A child that returned to pytest ran the other tests, too, and removed the run directory.

    A timeout of -1 s looked like a hang.
    """
    demo(test=FORKS)
    done = pytester.runpytest_inprocess(f"--vllm-env={fixed_target}")
    done.assert_outcomes(passed=3, failed=3)
    for seconds in ("-1", "nan", "'5'"):
        done.stdout.fnmatch_lines(
            [f"INCONCLUSIVE: *timeout={seconds} is not a number of seconds of at least 0*"]
        )
