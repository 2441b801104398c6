"""A campaign resumes where it was killed, gives the same findings for the same seed, and its files
replay."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.engines.inputs.formats import Format
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.fuzz.campaign import JOURNAL, Campaign
from pytest_vllm_regress.fuzz.hunter import CampaignPlan, load
from pytest_vllm_regress.fuzz.parsers import parser_hunter
from pytest_vllm_regress.fuzz.parsers.parser_hunter import ParserFinding, ParserHunter
from pytest_vllm_regress.fuzz.parsers.parser_process import ParserName
from pytest_vllm_regress.fuzz.parsers.parser_question import ParserQuestion, ParserReply
from tests.unit.fuzz.parsers.stand_in import FORM, Fault, StandIn, loses_calls_that_come_at_once

PLAN = CampaignPlan(seed=3, examples=40)


class Process:
    """Stands in for ``ParserProcess``.

    ``dies_after``: number of requests after which it is killed.
    """

    def __init__(
        self, fault: Fault = loses_calls_that_come_at_once, dies_after: int = 10**9
    ) -> None:
        self._parser, self._left = StandIn(fault), dies_after

    def registered(self) -> tuple[list[ParserName], list[ParserName]]:
        return [ParserName("tool", "one", ("alias",)), ParserName("tool", "two")], [
            ParserName("tool", "broken")
        ]

    def ask(
        self, parser: ParserName, form: Format, questions: Sequence[ParserQuestion]
    ) -> list[ParserReply]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._parser(questions)


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        parser_hunter, "formats_of", lambda kind, name: (FORM,) if name in ("one", "two") else ()
    )


def hunter(process: Process, *names: str) -> ParserHunter:
    versions = {"vllm": "0.11.2", "transformers": "4.57"}
    return ParserHunter([process], "vllm-0.11.2", versions, names)  # type: ignore[list-item]


def run(
    process: Process, folder: Path, plan: CampaignPlan = PLAN, *names: str
) -> Campaign[Any, Any, ParserFinding]:
    campaign = Campaign(hunter(process, *names), plan, folder, lambda line: None)
    campaign.run()
    return campaign


def test_what_is_found_is_reported_with_the_command_that_shows_it_again(tmp_path: Path) -> None:
    lines: list[str] = []
    campaign = Campaign(hunter(Process()), PLAN, tmp_path, lines.append)
    campaign.run()
    assert campaign.findings
    for finding in campaign.findings:
        assert f"      vllm-regress fuzz replay {tmp_path / finding.name}" in lines
        assert any(line.startswith(f"    {finding.problem}: ") for line in lines)


def test_every_parser_is_asked_and_its_findings_are_files(tmp_path: Path) -> None:
    campaign = run(Process(), tmp_path)
    assert [step.label for step in campaign.steps] == ["one", "two"]
    assert campaign.hunter.left_out == {"broken": "its class cannot be loaded"}
    names = {path.name for path in tmp_path.glob("parser-*.json")}
    assert names == {finding.name for finding in campaign.findings}
    assert {finding.parser.name for finding in campaign.findings} == {"one", "two"}


def test_a_campaign_that_was_killed_resumes_with_the_same_findings(tmp_path: Path) -> None:
    whole = run(Process(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(Process(dies_after=8), tmp_path / "killed")
    resumed = run(Process(), tmp_path / "killed")
    assert resumed.findings == whole.findings
    assert len(resumed.steps) == len(whole.steps)


def test_finished_steps_are_not_run_again(tmp_path: Path) -> None:
    run(Process(), tmp_path)
    journal = (tmp_path / JOURNAL).read_text()
    run(Process(dies_after=2), tmp_path)  # the two questions whether the parsers read the format
    assert (tmp_path / JOURNAL).read_text() == journal


def test_the_budget_counts_over_resumptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=40.0)
    fake = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("pytest_vllm_regress.fuzz.campaign.time", fake)
    plan = CampaignPlan(seed=3, examples=40, minutes=1, rounds=None)
    assert len(run(Process(), tmp_path, plan).steps) == 2
    assert len(run(Process(), tmp_path, plan).steps) == 2
    more = dataclasses.replace(plan, minutes=2)
    assert len(run(Process(), tmp_path, more).steps) == 3


def test_a_campaign_is_not_run_twice_at_a_time(tmp_path: Path) -> None:
    campaign = Campaign(hunter(Process()), PLAN, tmp_path, lambda line: None)
    campaign._journal.lock()
    with pytest.raises(UsageError, match="in use by process"):
        run(Process(), tmp_path)
    campaign._journal.close()


def test_the_journal_of_another_campaign_is_refused(tmp_path: Path) -> None:
    run(Process(), tmp_path)
    with pytest.raises(UsageError, match="for something else"):
        run(Process(), tmp_path, CampaignPlan(seed=4, examples=40))


def test_an_unknown_parser_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'three'.*alias, broken, one, two"):
        run(Process(), tmp_path, PLAN, "three")


def test_a_finding_replays(tmp_path: Path) -> None:
    finding = load(tmp_path / run(Process(), tmp_path).findings[0].name)
    assert hunter(Process()).replay(finding)[0] == "STILL FAILS"
    right = Process(lambda answer, pieces: answer)
    assert hunter(right).replay(finding)[0] == "FIXED"
    endless = Process(lambda answer, pieces: {**answer, "finished": False})
    answer, words = hunter(endless).replay(finding)
    assert answer == "STILL FAILS"
    assert words.startswith("in another way: no end")


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", 1), ("parser", {"kind": "x"}), ("surplus", 1), ("kinds", ["never"])],
)
def test_a_damaged_finding_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / run(Process(), tmp_path).findings[0].name
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UsageError, match=path.name):
        load(path)
