"""The matrix on a cluster: the same verdicts as on one machine, and complete results without
leftovers whatever is killed."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.runner.journal import JournalEntry
from pytest_vllm_regress.util.store import Store
from tests.cluster.conftest import Cluster, kill, wait_for
from tests.cluster.matrices import LEFT_S, environments, expected, named, page, verdicts
from tests.conftest import MakeTarget
from tests.helpers.waiting_cases import version_case

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CASES, OLD, NEW = 10, 3, 3


@pytest.mark.sample
def test_the_cluster_gives_the_same_verdicts_as_one_machine(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path
) -> None:
    targets = environments(make_target, OLD, NEW)
    for number in range(CASES):
        version_case(tmp_path / "cases", f"case-{number}")
    for name, where in (("there", ["--on", cluster.address]), ("here", ["--jobs", "2"])):
        result = str(tmp_path / f"{name}.json")
        done = cluster.run(
            cluster.command(tmp_path / "cases", "matrix", *where, *named(targets), "--out", result)
        )
        assert done.returncode == 0, done.stdout + done.stderr
    local, on_cluster = page(tmp_path / "here.json"), page(tmp_path / "there.json")
    assert verdicts(local) == verdicts(on_cluster) == expected(targets, OLD, CASES)
    assert len({cell["node"]["node"] for cell in on_cluster}) > 1
    assert all("node" not in cell for cell in local)
    cluster.wait_until_clean(LEFT_S)


def finished(folder: Path) -> list[str]:
    """Return the names of the cells whose results are in the journals of the folder."""
    return [
        name
        for file in folder.rglob("cases.jsonl")
        for name, entry in Store(file, JournalEntry, what="the journal of a run").entries.items()
        if entry.results is not None
    ]


@pytest.mark.parametrize("victim", ["worker", "raylet", "driver"])
def test_results_are_complete_whichever_process_is_killed(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path, victim: str
) -> None:
    targets = environments(make_target, 2, 2)
    flag, note, first, result = (tmp_path / name for name in ("flag", "note", "first", "r.json"))
    flag.touch()
    version_case(tmp_path / "cases", "case-0", note=first)
    version_case(tmp_path / "cases", "case-1", note=note, flag=flag)
    version_case(tmp_path / "cases", "case-2")
    command = cluster.command(
        tmp_path / "cases",
        "matrix",
        "--on",
        cluster.address,
        *named(targets),
        "--out",
        str(result),
    )
    driver = cluster.start(command)
    journal = Path(cluster.variables["VLLM_REGRESS_CACHE"]) / "matrix"
    # A command talks to the cluster through the head's raylet here; another one is to die.
    wait_for(
        lambda: cluster.off_head(note) and finished(journal),
        "a cell is back, and the next one waits",
    )
    probe = cluster.off_head(note)[0]
    if victim == "driver":
        driver.kill()
        driver.communicate()
        wait_for(lambda: not psutil.pid_exists(probe), "the cells end with their driver", LEFT_S)
        cluster.wait_until_clean(LEFT_S)
        ran = len(first.read_text().split())
        kept = finished(journal)
        flag.unlink()
        done = cluster.run(command)
        out = done.stdout + done.stderr
        assert re.search(r"\d+ cells? (is|are) finished by an earlier run", out), out
        # Those that were finished ran once.
        again = len(targets) - sum(name.startswith("case-0 in ") for name in kept)
        assert len(first.read_text().split()) == ran + again
    else:
        kill(cluster.worker_above(probe) if victim == "worker" else cluster.raylet_above(probe))
        wait_for(lambda: not psutil.pid_exists(probe), "its cells end", LEFT_S)
        flag.unlink()
        out, _ = driver.communicate(timeout=300)
        assert "unfinished cells are sent to another node" in out, out
    assert verdicts(page(result)) == expected(targets, 2, 3), out
    cluster.wait_until_clean(LEFT_S)


def test_a_terminated_driver_shows_its_table(
    cluster: Cluster, make_target: MakeTarget, tmp_path: Path
) -> None:
    """Regression:

    Ray's own handler of SIGTERM printed a trace of its core and ended the command without results.
    """
    targets = environments(make_target, 1, 0)
    flag, note = tmp_path / "flag", tmp_path / "note"
    flag.touch()
    version_case(tmp_path / "cases", "case-0", note=note, flag=flag)
    driver = cluster.start(
        cluster.command(tmp_path / "cases", "run", "--on", cluster.address, *named(targets))
    )
    wait_for(note.exists, "the case runs")
    driver.terminate()
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "interrupted" in out and "no verdicts" in out, out
    assert "SIGTERM received" not in out, out
    cluster.wait_until_clean(LEFT_S)
