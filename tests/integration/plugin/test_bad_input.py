"""Bad input: a clear error that says what, where and what to do; other tests of the session are
unharmed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.settings import Timeouts
from pytest_vllm_regress.plugin import options
from tests.integration.plugin.conftest import Demo

ENGINE = "import pytest\n@pytest.mark.vllm_engine({})\ndef test_it({}):\n    pass\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vllm-device=tpu"], ["*invalid choice: 'tpu'*"]),
        (["--vllm-gpu", "--vllm-device=sim"], ["*--vllm-gpu and --vllm-device sim contradict*"]),
        (
            ["--vllm-timeout=start=soon"],
            ["*vllm_timeout start = 'soon' (from the command line) is not a positive number*"],
        ),
        (
            ["--vllm-timeout=strat=5"],
            [
                "*vllm_timeout = 'strat=5' (from the command line): expected PHASE=SECONDS. "
                "Did you mean start? Phases: import, start, ready, *, first-start*"
            ],
        ),
        (["--vllm-timeout=60"], ["*vllm_timeout = '60' (from the *: expected PHASE=SECONDS.*"]),
        (["--vllm-env=vllm-0.8.44x"], ["ERROR: *unknown environment 'vllm-0.8.44x'*vllm-0.8.4*"]),
        (
            ["--vllm-env=vllm-0.8.44x", "--vllm-env=vllm-0.8.4"],
            ["ERROR: *unknown environment 'vllm-0.8.44x'*"],
        ),
        (
            ["--vllm-env=vllm-0.8.44x", "-n2"],
            ["ERROR: *unknown environment 'vllm-0.8.44x'*vllm-0.8.4*"],
        ),
        (["--vllm-env=/no/such/python"], ["ERROR: *no such interpreter*"]),
    ],
)
def test_options(
    demo: Demo, pytester: pytest.Pytester, options: list[str], words: list[str]
) -> None:
    demo()
    done = pytester.runpytest_inprocess(*options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    (done.stderr if done.stderr.str().strip() else done.stdout).fnmatch_lines(words)


def test_gpu_that_is_not_there(
    demo: Demo, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = pytester.runpytest_inprocess("--vllm-gpu")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*no usable GPU was found. Looked for: CUDA_VISIBLE_DEVICES*"])


def test_timeouts_of_phases(demo: Demo, pytester: pytest.Pytester) -> None:
    """The command line wins for each phase that it names."""
    config = pytester.parseconfigure("--vllm-timeout=start=9", "--vllm-timeout=first-start=8")
    pytester.makeini("[pytest]\nvllm_timeout = start=60 ready=120\n")
    both = pytester.parseconfigure("--vllm-timeout=start=9")
    assert options.resolve(config).timeouts == Timeouts(start_s=9, first_start_s=8)
    assert options.resolve(both).timeouts == Timeouts(start_s=9, ready_s=120)
    pytester.makeini("[pytest]\nvllm_timeout = start=60s\n")
    with pytest.raises(pytest.UsageError, match=r"start = '60s' \(from the ini file .*tox.ini\)"):
        options.resolve(pytester.parseconfigure())


def test_ini_twins(demo: Demo, pytester: pytest.Pytester, affected_target: Path) -> None:
    demo("raises")
    pytester.makeini(f"[pytest]\nvllm_env = {affected_target}\nvllm_fail_on_known = true\n")
    pytester.runpytest_inprocess().assert_outcomes(failed=1)
    pytester.makeini("[pytest]\nvllm_device = tpu\n")
    done = pytester.runpytest_inprocess()
    done.stderr.fnmatch_lines(["*ini option vllm_device = 'tpu'*allowed are auto, sim, cpu, gpu*"])


@pytest.mark.parametrize("option", ["--vllm-env", "--vllm-source", "--vllm-model", "--vllm-report"])
def test_a_path_that_pytest_takes_for_tests(
    pytester: pytest.Pytester, elsewhere: Path, option: str
) -> None:
    """Its ini file is then not the project's, which a warning says."""
    done = pytester.runpytest_inprocess(option, str(elsewhere))
    done.stdout.fnmatch_lines(
        [f"*pytest took the value of {option} for a path of tests*Write {option}={elsewhere}"]
    )


def test_a_path_that_is_harmless(pytester: pytest.Pytester, elsewhere: Path) -> None:
    inside = pytester.path / "inside"
    inside.touch()
    for arguments in (
        [f"--vllm-env={elsewhere}"],
        ["--vllm-env", "test_a_path_that_is_harmless.py"],
    ):
        pytester.runpytest_inprocess(*arguments).stdout.no_fnmatch_line("*took the value*")
    (pytester.path / "tox.ini").unlink()
    pytester.runpytest_inprocess("--vllm-env", "inside").stdout.no_fnmatch_line("*took the value*")


@pytest.fixture
def elsewhere(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file outside the project, which has an ini file and one test."""
    path = tmp_path_factory.mktemp("elsewhere") / "it"
    path.touch()
    pytester.makeini("[pytest]\naddopts = -rs\n")
    pytester.makepyfile("def test_it(): pass\n")
    return path


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_no_environment_is_named_and_there_is_none(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    """Listing tests needs no environment, and nothing large is built without a request."""
    pytester.makepyfile("def test_it(vllm_engine): pass\n")
    done = pytester.runpytest_inprocess(*workers)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    words = done.stdout.str() + done.stderr.str()
    assert words.count("no environment is named") == 1
    assert "--vllm-env=NAME|PATH" in words
    assert "building" not in words
    assert pytester.runpytest_inprocess("--collect-only").ret == pytest.ExitCode.OK


def test_interpreter_without_vllm(demo: Demo, pytester: pytest.Pytester) -> None:
    demo()
    done = pytester.runpytest_inprocess(f"--vllm-env={sys.executable}")
    assert done.ret != 0
    assert "has neither vLLM" in done.stdout.str() + done.stderr.str()


def test_markers(demo: Demo, pytester: pytest.Pytester, affected_target: Path) -> None:
    """All markers are in one run: an error in one test does not affect the others."""
    demo("fine", affected="<0.8")
    parameters = 'pytest.param(1, marks=pytest.mark.vllm_case("demo-1", variant="other"))'
    wrong = {
        'vllm_case("demo-2")': "vllm_case('demo-2')*has id 'demo-1'",
        'vllm_case("demo-1", variant="odd")': "no variant 'odd'; it has other",
        'vllm_case("demo-1", varient="x")': "not 'varient'",
        f'parametrize("which", [{parameters}])\n@pytest.mark.vllm_case("demo-1")': "two markers vllm_case",
        'vllm_requires(vllm="=>1")': "not a PEP 440 specifier",
    }
    for number, marker in enumerate(wrong):
        argument = "which, " * ("which" in marker)
        test = f"import pytest\n@pytest.mark.{marker}\ndef test_bad({argument}vllm_probe): pass\n"
        pytester.makepyfile(**{f"test_{number}": test})
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    done.assert_outcomes(passed=1, errors=len(wrong))
    for words in wrong.values():
        done.stdout.fnmatch_lines([f"*{words}*"])


def test_engine_markers(pytester: pytest.Pytester, affected_target: Path) -> None:
    wrong = {
        (
            "tensor_parallel=2",
            "vllm_engine",
        ): "unknown argument 'tensor_parallel'. Did you mean tensor_parallel_size? Allowed: front, *",
        ("tp=[1, 0]", "vllm_engine"): "tensor_parallel_size=0 is not a whole number of at least 1",
        ("tp=[]", "vllm_engine"): "an axis needs at least one value",
        ('front="sync"', "vllm_engine"): "front='sync' is not one of offline, async, serve",
        (
            "tp=[1, 2], tensor_parallel_size=1",
            "vllm_engine",
        ): "tp is short for tensor_parallel_size: give one of them",
        ("fresh='yes'", "vllm_engine"): "fresh='yes' is neither True nor False",
        ("tp=[1, 1]", "vllm_engine"): "an axis has each value once",
        ("timeout='5'", "vllm_engine"): "timeout='5' is not a positive number of seconds",
        ("timeout=True", "vllm_engine"): "timeout=True is not a positive number of seconds",
        (
            "tp=[1, 2]",
            "vllm_env",
        ): "uses none of the fixtures engine_spec, vllm_engine, vllm_server",
    }
    for number, (arguments, fixture) in enumerate(wrong):
        pytester.makepyfile(**{f"test_{number}": ENGINE.format(arguments, fixture)})
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    done.assert_outcomes(errors=len(wrong))
    for words in wrong.values():
        done.stdout.fnmatch_lines([f"*{words}*"])
    assert "pluggy" not in done.stdout.str().partition("= ERRORS =")[2]  # no traceback


def test_malformed_case_file(demo: Demo, pytester: pytest.Pytester, affected_target: Path) -> None:
    demo()
    text = (
        (pytester.path / "case.toml")
        .read_text()
        .replace('kind = "exception"', 'kind = "explosion"')
    )
    (pytester.path / "case.toml").write_text(text)
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*case.toml*symptom.kind*explosion*"])


def test_report_that_cannot_be_written(
    demo: Demo, pytester: pytest.Pytester, affected_target: Path
) -> None:
    demo("raises")
    done = pytester.runpytest_inprocess(
        f"--vllm-env={affected_target}", "--vllm-report=/proc/nowhere/out.json"
    )
    assert done.ret != 0
    assert "/proc/nowhere/out.json" in done.stdout.str() + done.stderr.str()


def test_a_refusal_at_setup_is_one_message(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    """Regression: 20 lines of this plugin's code came before it."""
    pytester.makepyfile(ENGINE.format('import_path=["nowhere"]', "vllm_engine"))
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["*ERROR at setup of test_it*", f"*import_path: there is no folder {pytester.path}/nowhere"]
    )
    assert "pytest_vllm_regress/" not in done.stdout.str()


def test_a_refusal_in_a_users_fixture_keeps_its_line(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    pytester.makeconftest(
        "import pytest\n@pytest.fixture\ndef mine(vllm_engines):\n    return vllm_engines(tensor_parallel=2)\n"
    )
    pytester.makepyfile("def test_it(mine):\n    pass\n")
    done = pytester.runpytest_inprocess(f"--vllm-env={affected_target}")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*return vllm_engines(tensor_parallel=2)"])


def test_an_interpreter_without_assertions_is_refused(
    pytester: pytest.Pytester, affected_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test(vllm_env): pass")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    result = pytester.runpytest_subprocess(f"--vllm-env={affected_target}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*remove assertions*"])
