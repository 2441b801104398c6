"""``matrix --releases``: the order of releases, their environments within a limit of disk space,
and resuming after SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.environments import releases as index
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.downloads import Contents
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.runner.batch import Batch, BatchFiles, RunOptions
from pytest_vllm_regress.runner.executors import ThreadsExecutor
from pytest_vllm_regress.runner.sweep import DiskBudget, SweptEnvironment, plan_sweep, sweep_cache
from pytest_vllm_regress.util.sizes import GIB, size_of
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile
from tests.integration.environments.conftest import Fake

NAMES = tuple(f"vllm-0.90.{number}" for number in range(1, 6))
KB = 1000
DRIVER = """
import json, sys, threading
from pathlib import Path
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.results import RunResult, TestResult, append_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.downloads import Contents
from pytest_vllm_regress.runner.batch import Batch, RunOptions
from pytest_vllm_regress.runner.sweep import DiskBudget, plan_sweep
from pytest_vllm_regress.runner.executors import ThreadsExecutor
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.progress import CaseLines
from pytest_vllm_regress.runner.run import RunRequest, run_batches
from pytest_vllm_regress.util.sizes import disk_usage

program, folder, names, limit, stop_in = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(), int(sys.argv[4]), sys.argv[5]
uv.program = lambda: program
cases = load_all_cases(folder / "cases")
cache, journal = EnvironmentCache(), Journal(folder / "journal", ["key"])
planned = plan_sweep(names, lambda name: Contents({name: 120_000}, "2.6.0"))
def say(line):
    sys.stdout.write(line + "\\n")  # print writes the end of the line on its own, and other threads write between
    sys.stdout.flush()

def start(log, command, environment):
    options = dict(part.split("=", 1) for part in command if part.startswith("--vllm-"))
    name = options["--vllm-env"]
    say(json.dumps({"ran": name, "size": disk_usage(cache.root)}))
    if name == stop_in:
        threading.Event().wait()
    results = tuple(TestResult(case.id, f"{case.id}::test", Verdict.FIXED, "passed", "sim", name) for case in cases)
    append_results(Path(options["--vllm-report"]), RunResult(results))
    return 0

with DiskBudget(limit, planned, cache, journal.directory / "uv", say).opened() as budget:
    executor = ThreadsExecutor(budget.build, 1, say, start, seconds=None, release=budget.release)
    batches = [Batch(entry.name, cases, {}) for entry in planned]
    outcome = run_batches(RunRequest(batches, executor, RunOptions(), CaseLines(say, logs=False), journal))
say(json.dumps({"results": len(outcome.run.results), "code": outcome.exit_code}))
"""


def swept(*names: str, files: int = 50 * KB) -> tuple[SweptEnvironment, ...]:
    return plan_sweep(names, lambda name: Contents({"torch": files, name: files}, "2.6.0"))


@pytest.fixture
def released(fake: Fake) -> Fake:
    (fake.folder / "released").write_text("2025-07-08")
    return fake


def test_releases_of_one_torch_follow_each_other_and_share_its_files() -> None:
    torch = {"a": "2.6", "b": "2.7", "c": "2.6", "d": "", "e": "2.7"}
    planned = plan_sweep(
        list(torch), lambda name: Contents({f"torch {torch[name]}": 70, name: 30}, torch[name])
    )
    assert [entry.name for entry in planned] == ["a", "c", "d", "b", "e"]
    assert [(entry.torch, entry.added, entry.size) for entry in planned[:2]] == [
        ("2.6", 200, 200),
        ("2.6", 60, 200),
    ]


def test_an_environment_of_unknown_size_counts_as_a_large_one() -> None:
    (entry,) = plan_sweep(["a"], lambda name: Contents())
    assert entry.size > 10 * GIB


def test_post_releases_and_yanked_releases_are_named() -> None:
    planned = plan_sweep(
        ["vllm-0.8.5", "vllm-0.8.5.post1"],
        lambda name: Contents({"x": 1}, yanked=name.endswith("5")),
    )
    assert [entry.notes for entry in planned] == ["yanked", "post-release"]


def test_a_limit_that_is_too_small_or_larger_than_the_disk_is_refused(
    cache: EnvironmentCache, tmp_path: Path
) -> None:
    planned = swept("vllm-0.90.1", files=GIB)
    with pytest.raises(UsageError, match=r"3 GiB are too few: vllm-0.90.1 takes about 4 GiB"):
        DiskBudget(3 * GIB, planned, cache, tmp_path / "uv", print).check()
    with pytest.raises(UsageError, match="has room for"):
        DiskBudget(10**9 * GIB, planned, cache, tmp_path / "uv", print).check()


@pytest.mark.slow
def test_what_is_done_makes_room_and_other_environments_stay(
    released: Fake, cache: EnvironmentCache, tmp_path: Path
) -> None:
    cache.ensure(resolve("vllm-0.91.0"))
    downloads = tmp_path / "uv"
    downloads.mkdir()
    budget = DiskBudget(600 * KB, swept(*NAMES), cache, downloads, lambda line: None)
    with budget.opened():
        for name in NAMES:
            budget.build(name)
            assert cache.built(resolve(name))
            budget.release(name)
    left = {environment.name for environment in cache.listing()}
    assert {"vllm-0.91.0", NAMES[-1]} <= left
    assert NAMES[0] not in left
    used = {
        call["env"].get("UV_CACHE_DIR") for call in released.noted() if call["words"][0] == "venv"
    }
    assert used == {
        os.environ.get("UV_CACHE_DIR"),
        str(downloads),
    }  # the first build was not the sweep's


def test_a_second_sweep_is_refused_while_one_runs(cache: EnvironmentCache, tmp_path: Path) -> None:
    first, second = (
        DiskBudget(600 * KB, swept(*NAMES), cache, tmp_path / "uv", print) for _ in range(2)
    )
    with (
        first.opened(),
        pytest.raises(UsageError, match="would not count each other's environments"),
    ):
        second.opened().__enter__()
    with second.opened():
        assert os.environ["UV_CACHE_DIR"] == str(tmp_path / "uv")


def test_a_full_cache_costs_no_environment_that_is_not_part_of_the_sweep(
    released: Fake, cache: EnvironmentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.ensure(resolve(NAMES[1]))
    monkeypatch.setattr("pytest_vllm_regress.environments.cache._DEFAULT_LIMIT", 0)
    budget = DiskBudget(600 * KB, swept(NAMES[0]), sweep_cache(), tmp_path / "uv", print)
    with budget.opened():
        budget.build(NAMES[0])
        assert [cache.built(resolve(name)) is not None for name in NAMES[:2]] == [True, True]


def test_uvs_cache_is_emptied_when_removing_environments_is_not_enough(
    released: Fake, cache: EnvironmentCache, tmp_path: Path
) -> None:
    downloads = tmp_path / "uv"
    downloads.mkdir()
    (downloads / "wheel").write_bytes(bytes(500 * KB))
    budget = DiskBudget(600 * KB, swept(*NAMES), cache, downloads, lambda line: None)
    with budget.opened():
        budget.build(NAMES[0])
        (clean,) = [call for call in released.noted() if call["words"][:2] == ["cache", "clean"]]
    assert clean["env"]["UV_CACHE_DIR"] == str(downloads)


def test_uvs_cache_is_emptied_when_a_sweep_is_interrupted(
    released: Fake, cache: EnvironmentCache, tmp_path: Path
) -> None:
    """Regression: it was kept for a repetition of the same command, and did not count in any other
    sweep."""
    downloads = tmp_path / "uv"
    downloads.mkdir()
    budget = DiskBudget(600 * KB, swept(*NAMES), cache, downloads, lambda line: None)
    with contextlib.suppress(KeyboardInterrupt), budget.opened():
        budget.build(NAMES[0])
        raise KeyboardInterrupt
    (clean,) = [call for call in released.noted() if call["words"][:2] == ["cache", "clean"]]
    assert clean["env"]["UV_CACHE_DIR"] == str(downloads)


def test_a_cache_that_cannot_be_emptied_does_not_cost_the_results(
    cache: EnvironmentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise BuildError("no uv")

    monkeypatch.setattr(uv, "empty_cache", fail)
    said: list[str] = []
    with DiskBudget(600 * KB, swept(*NAMES), cache, tmp_path, said.append).opened():
        pass
    assert said == [f"{tmp_path} is left, and counts in the next sweep: no uv"]


def test_a_build_waits_for_an_environment_in_use(released: Fake, cache: EnvironmentCache) -> None:
    first, second = NAMES[:2]
    budget = DiskBudget(300 * KB, swept(*NAMES), cache, cache.root / "uv", lambda line: None)
    with budget.opened():
        budget.build(first)
        waiting = threading.Thread(target=budget.build, args=(second,))
        waiting.start()
        assert cache.built(resolve(second)) is None
        budget.release(first)
        waiting.join(30)
        assert cache.built(resolve(second))
        assert cache.built(resolve(first)) is None


def test_a_sweep_ends_while_a_build_waits_for_room(
    released: Fake, cache: EnvironmentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the executor waited for the build, and the build waited for an environment that
    was released only after the executor had ended."""
    CaseFile("one", old=NAMES[:1], new=NAMES[1:2]).write(tmp_path / "cases")
    cases, planned = load_all_cases(tmp_path / "cases"), swept(*NAMES)
    waits = threading.Event()
    make_room = DiskBudget._make_room

    def noted(budget: DiskBudget, name: str) -> bool:
        has_room = make_room(budget, name)
        if not has_room:
            waits.set()
        return has_room

    def run(log: object, command: list[str], environment: object) -> int:
        assert waits.wait(30)
        return 1

    monkeypatch.setattr(DiskBudget, "_make_room", noted)
    with DiskBudget(
        300 * KB, planned, cache, cache.root / "uv", lambda line: None
    ).opened() as budget:
        executor = ThreadsExecutor(budget.build, 1, lambda line: None, run, seconds=None)
        updates = executor.execute(
            [Batch(entry.name, cases, {}) for entry in planned], RunOptions(), BatchFiles(tmp_path)
        )
        next(updates)
        assert waits.wait(30)
        updates.close()
    assert cache.built(resolve(NAMES[1])) is None


@pytest.mark.slow
def test_a_sweep_killed_twice_is_resumed_to_the_end_within_its_limit(
    released: Fake, tmp_path: Path
) -> None:
    CaseFile("one", old=NAMES[:1], new=NAMES[1:2]).write(tmp_path / "cases")
    limit = 620 * KB
    ran: list[str] = []
    for stop_in in (NAMES[1], NAMES[3], ""):
        command = [sys.executable, "-c", DRIVER, str(released.program), str(tmp_path)]
        command += [" ".join(NAMES), str(limit), stop_in]
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, text=True, stdout=-1
        )
        assert process.stdout is not None
        last: dict[str, object] = {}
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            last = json.loads(line)
            if "ran" in last:
                ran.append(str(last["ran"]))
                assert int(str(last["size"])) <= limit
            if last.get("ran") == stop_in:
                process.kill()
        process.wait()
    # Builds overlap, so the order may differ; only the environments in which it was killed run
    # twice.
    assert Counter(ran) == {name: 2 if name in (NAMES[1], NAMES[3]) else 1 for name in NAMES}
    assert last == {"results": len(NAMES), "code": 0}


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = tuple(map(Version, ("0.8.5", "0.8.5.post1", "0.90.1", "0.90.2")))
    monkeypatch.setattr(index, "releases", lambda package: versions)


def test_a_dry_run_lists_releases_in_their_order(
    released: Fake, releases: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = "\n".join(
        f'[[packages]]\nname = "{name}"\nversion = "2.6.0"\nwheels = [{{ url = "https://example.org/{name}-2.6.0-py3-none-any.whl", '
        f'size = {GIB}, hashes = {{ sha256 = "aa" }} }}]'
        for name in ("torch", "vllm")
    )
    (released.folder / "pylock").write_text(packages)
    CaseFile("one").write(tmp_path / "cases")
    command = ["--cases", str(tmp_path / "cases"), "matrix", "--releases", ">0.8.5", "--dry-run"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "environment  torch  adds     notes",
        "vllm-0.90.1  2.6.0  4.0 GiB",
        "vllm-0.90.2  2.6.0  0.0 GiB",
        "2 releases, about 4 GiB in all, at most 30 GiB at a time",
    ]
    assert main([*command[:4], ">=0.8.5,<0.90.2", "--dry-run"]) == 0
    assert "vllm-0.8.5.post1  2.6.0  0.0 GiB  post-release" in capsys.readouterr().out
    assert not released.calls("install")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--releases", "new"], "not a PEP 440 specifier"),
        (["--releases", ">9"], "none of the 4 releases of vllm, 0.8.5 to 0.90.2"),
        (["--releases", ">0", "--env", "x"], "contradict"),
        (["--disk", "1GiB"], "--disk"),
        (["--releases", ">0", "--disk", "30"], "allowed is a size such as 30GiB"),
        (
            ["--releases", ">0", "--on", "ray", "--disk", "30GiB"],
            "a cluster's nodes have limits of their own",
        ),
    ],
)
def test_contradictory_options_are_refused(
    options: list[str],
    message: str,
    releases: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    CaseFile("one").write(tmp_path / "cases")
    assert main(["--cases", str(tmp_path / "cases"), "matrix", *options]) == 2
    assert message in capsys.readouterr().err


def test_sizes_in_text() -> None:
    assert (size_of("30GiB"), size_of("1.5 MiB"), size_of("30"), size_of("GiB")) == (
        30 * GIB,
        3 * 2**19,
        None,
        None,
    )
