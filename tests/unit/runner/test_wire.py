"""Requests and replies as text: complete, bounded and checked.

An environment's name means the same where a request is unpacked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.proofs.fingerprint import case_fingerprint
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.install import sidecar_locks
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import wire
from pytest_vllm_regress.runner.batch import (
    Batch,
    BatchFiles,
    BatchState,
    BatchUpdate,
    Needs,
    RunOptions,
    RunOutcome,
    inconclusive_results,
)
from pytest_vllm_regress.runner.journal import Journal
from pytest_vllm_regress.runner.progress import CaseLines
from pytest_vllm_regress.runner.run import RunRequest, run_batches
from pytest_vllm_regress.runner.wire import (
    MAX_LOG,
    BatchReply,
    BatchRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    head_of,
)
from tests.helpers.cases import CaseFile
from tests.helpers.waiting_cases import version_case

FIXED = TestResult(
    "one", "one/test_one.py::test", Verdict.FIXED, "passed", "sim", "a", node={"node": "n1"}
)


def test_requests_and_replies_survive_encoding() -> None:
    request = BatchRequest(
        "vllm-0.8.4", "x", {"l.txt": "y"}, ("one",), {"one/case.toml": "z"}, "sim", ("-k", "a")
    )
    assert decode_request(encode_request(request)) == request
    reply = BatchReply(BatchState.LOST, RunResult((FIXED,)), False, "full", {"node": "n1"}, "said")
    assert decode_reply(encode_reply(reply)) == reply
    head = head_of(encode_reply(reply))
    assert (head.state, head.last) == (BatchState.LOST, False)
    assert len(decode_reply(encode_reply(BatchReply(log="x" * (MAX_LOG + 1)))).log) == MAX_LOG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "schema = 1"),
        ({"tool_version": "0"}, "install the same one on every machine"),
        ({"files": {"../x": ""}}, "a path that stays below its folder"),
        ({"files": {"/etc/x": ""}}, "a path that stays below its folder"),
        ({"locks": {"a/../../x": ""}}, "a path that stays below its folder"),
        ({"device": "tpu"}, "allowed"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_malformed_requests_and_replies_are_refused(
    change: dict[str, object], message: str
) -> None:
    document = json.loads(encode_request(BatchRequest("a")))
    with pytest.raises(UsageError, match=message):
        decode_request(json.dumps(document | change))
    with pytest.raises(UsageError, match="not valid JSON"):
        decode_reply("{")
    with pytest.raises(UsageError, match="state"):
        decode_reply(json.dumps(json.loads(encode_reply(BatchReply())) | {"state": "gone"}))


def test_an_environment_name_means_the_same_where_a_request_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = version_case(tmp_path / "cases", "one")
    (tmp_path / "cases" / "conftest.py").write_text("")
    (case.directory / proof.FILE).write_text("{}")
    (case.directory / "plugins").mkdir()
    (case.directory / "plugins" / "entry_points.txt").write_text("[a]")
    options = RunOptions("gpu", None, ("-x",))
    for name in ("vllm-0.8.4", "vllm-0.9.1+lm-format-enforcer==0.10.5"):
        request = wire.pack(Batch(name, (case,), {}), options, wire.needs_of(options, gpus=2))
        local_recipe = resolve(name)
        folder = tmp_path / f"unpacked-{request.environment}"
        folder.mkdir()
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(folder)
            batch, unpacked = wire.unpack(decode_request(encode_request(request)), folder)
            recipe = resolve(batch.environment)
            unpacked_locks = {lock.name: lock.read_text() for lock in sidecar_locks()}
        assert (
            dataclasses.replace(recipe, lock=local_recipe.lock, lock_local=local_recipe.lock_local)
            == local_recipe
        )
        assert (recipe.lock and recipe.lock.read_text()) == (
            local_recipe.lock and local_recipe.lock.read_text()
        )
        assert unpacked_locks
        assert unpacked_locks == {lock.name: lock.read_text() for lock in sidecar_locks()}
        assert case_fingerprint(batch.cases[0]) == case_fingerprint(case)
        assert (unpacked.device, unpacked.pytest_args, request.needs) == (
            "gpu",
            ("-x",),
            Needs(gpus=2),
        )
        assert (folder / "cases" / "conftest.py").exists()
        assert (folder / "cases" / "one" / "plugins" / "entry_points.txt").exists()
        assert not (folder / "cases" / "one" / proof.FILE).exists()


def test_files_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    case = CaseFile("one").write(tmp_path / "cases")
    (case.directory / "picture.png").write_bytes(b"\x89\xff")
    with pytest.raises(UsageError, match=r"picture\.png: not UTF-8"):
        wire.pack(Batch("vllm-0.8.4", (case,), {}), RunOptions(), Needs())
    with pytest.raises(UsageError, match="no files of one"):
        wire.unpack(
            BatchRequest("a", cases=("one",), files={"two/case.toml": CaseFile("two").text()}),
            tmp_path / "new",
        )


class FakeExecutor:
    """Yields the updates that it was given, or raises them."""

    def __init__(self, *updates: BatchUpdate | type[BaseException] | None) -> None:
        self.updates = updates
        self.executed: list[tuple[str, tuple[str, ...]]] = []

    def execute(
        self, batches: Sequence[Batch], options: RunOptions, files: BatchFiles
    ) -> Generator[BatchUpdate | None, None, None]:
        self.executed += [
            (batch.environment, tuple(case.id for case in batch.cases)) for batch in batches
        ]
        for update in self.updates:
            if isinstance(update, type):
                raise update
            yield update


def test_the_journal_keeps_what_any_executor_finished_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_vllm_regress.cases.proofs.proof.lock_id", lambda environment: environment
    )
    journal = Journal(tmp_path / "journal", ["key"])
    cases = tuple(version_case(tmp_path / "cases", name) for name in ("one", "two", "three"))
    batch = Batch("a", cases, {})
    lost_run = RunResult(inconclusive_results(batch, cases[1:2], "the machine failed"))
    lines: list[str] = []

    def run(executor: FakeExecutor) -> RunOutcome:
        return run_batches(
            RunRequest(
                [batch], executor, RunOptions(), CaseLines(lines.append, logs=False), journal
            )
        )

    outcome = run(
        FakeExecutor(
            BatchUpdate(batch, RunResult((FIXED,)), last=False, node={"node": "n1"}),
            None,
            BatchUpdate(batch, lost_run, BatchState.LOST, last=False),
            KeyboardInterrupt,
        )
    )
    assert outcome.interrupted
    assert [result.case_id for result in outcome.run.results] == ["one"]
    assert lines[0].startswith("[1/3] FIXED one in a on n1, 0 s; about ")
    lines.clear()
    again = FakeExecutor(
        BatchUpdate(batch, lost_run, BatchState.LOST, last=False),
        BatchUpdate(batch, lost_run, BatchState.LOST),
    )
    outcome = run(again)
    assert again.executed == [("a", ("two", "three"))]
    assert {result.case_id: result.verdict for result in outcome.run.results} == {
        "one": Verdict.FIXED,
        "two": Verdict.INCONCLUSIVE,
    }
    assert outcome.exit_code == 1
    assert [line.partition("]")[0] for line in lines[1:]] == [
        "[1/2"
    ]  # a cell that comes twice is shown and counted once
