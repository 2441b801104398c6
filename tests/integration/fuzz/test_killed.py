"""A campaign that is killed by SIGKILL in the middle of a step goes on and has the same findings."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.fuzz.campaign import JOURNAL
from tests.helpers import ROOT

CAMPAIGN = """
import sys
from pathlib import Path
from pytest_vllm_regress.fuzz.campaign import Campaign
from pytest_vllm_regress.fuzz.engines.pair_hunter import PairHunter
from pytest_vllm_regress.fuzz.hunter import CampaignPlan
from tests.unit.fuzz.engines.stand_in import StandIn, loses_results

class Stops(StandIn):
    def ask(self, pair, question):
        if self.questions == int(sys.argv[2]):
            print("in the middle", flush=True)
            sys.stdin.read()  # until this process is killed
        return super().ask(pair, question)

pairs = ("batch", "stream", "http")
hunter = PairHunter([Stops(loses_results)], "vllm-0.33.0", {"vllm": "0.33.0"}, pairs)
plan = CampaignPlan(seed=5, examples=40)
Campaign(hunter, plan, Path(sys.argv[1]), lambda line: None).run()
"""


def command(folder: Path, stops_at: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [sys.executable, "-c", CAMPAIGN, str(folder), str(stops_at)]


def kill_in_the_middle(folder: Path, stops_at: int) -> None:
    with subprocess.Popen(
        command(folder, stops_at),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL


def outcome(folder: Path) -> dict[str, str]:
    """Return the content of each finding, and of the journal without its times."""
    files = {path.name: path.read_text() for path in sorted(folder.glob("*.json"))}
    head, *steps = map(json.loads, (folder / JOURNAL).read_text().splitlines())
    times = [{name: {**step, "seconds": 0} for name, step in line.items()} for line in steps]
    return {**files, JOURNAL: json.dumps([head, *times])}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(command(folder, -1), cwd=ROOT, check=True)
    return outcome(folder)


@pytest.mark.slow
@pytest.mark.parametrize("stops_at", [1, 75, 150])
def test_a_killed_campaign_goes_on_with_the_same_findings(
    tmp_path: Path, whole: dict[str, str], stops_at: int
) -> None:
    kill_in_the_middle(tmp_path, stops_at)
    killed = [path.name for path in tmp_path.glob("*.json")]
    assert len(killed) < len(whole)
    subprocess.run(command(tmp_path, -1), cwd=ROOT, check=True)
    assert outcome(tmp_path) == whole
    assert len(whole) > 2
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == sorted(whole)
