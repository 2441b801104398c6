"""What a test can do with the processes of an engine: list them, send them signals, wait for their
end, read their log."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.processes.child import Child, Loan
from pytest_vllm_regress.engines.processes.early_exit import EarlyExitPolicy
from pytest_vllm_regress.engines.running import Launch, Running, SchemaFilter
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import ChildDied, DeadlineExceeded, Kind, UsageError
from pytest_vllm_regress.util.deadline import Deadline

PROBE = Path(__file__).parents[1] / "processes" / "probe.py"
SHORT_S, LONG_S = 0.3, 30.0


class Engine(Running):
    front_role = "engine"


def deadline_for(phase: str, seconds: float | None) -> Deadline:
    return Deadline.after(phase, seconds or LONG_S)


def call(child: Child, function: str, **arguments: Any) -> Any:
    return child.request(
        "call",
        deadline_for("request", None),
        file=str(PROBE),
        function=function,
        arguments=arguments,
    )


@pytest.fixture
def engine(agent: Agent) -> Engine:
    child = agent.start_child("probe", deadline_for("start", None), loan=Loan(EarlyExitPolicy()))
    child.adopt_engine()
    nothing: Any = SimpleNamespace()
    return Engine(Launch(child, EngineSpec(), deadline_for, nothing))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -15), (signal.SIGINT, -2), (signal.SIGKILL, -9)]
)
def test_a_signal_ends_the_front_process_with_its_exit_code(
    engine: Engine, number: signal.Signals, code: int
) -> None:
    replies: list[str] = []
    with engine.lend(Loan(on_reply=lambda phase, reply: replies.append(phase)), SchemaFilter()):
        assert engine.signal(number).role == "engine"
        assert engine.wait_for_exit() == code
        assert not engine.processes()[0].alive
        assert replies == ["stop"]
        assert not engine.child.engine_is_dead
        assert engine.spent
        with pytest.raises(ChildDied) as caught:
            call(engine.child, "echo", value=1)
        assert caught.value.kind is Kind.CRASH  # the test asked for the end: no engine-death


def test_the_log_is_what_was_written_since_the_test_got_the_engine_whatever_its_length(
    engine: Engine,
) -> None:
    call(engine.child, "flood", megabytes=1)
    with engine.lend(Loan(), SchemaFilter()):
        assert engine.log() == ""
        call(engine.child, "flood", megabytes=1)
        engine.signal(signal.SIGINT)
        engine.wait_for_exit()
        log = engine.log()
    assert log.count("\n") > 1024
    assert log.endswith("KeyboardInterrupt")


def test_a_process_that_ignores_the_signal_hangs_in_phase_stop(engine: Engine) -> None:
    call(engine.child, "ignore", number=signal.SIGTERM)
    engine.signal(signal.SIGTERM)
    with pytest.raises(DeadlineExceeded, match=r"still alive after 0\.3 s") as caught:
        engine.wait_for_exit(SHORT_S)
    assert (caught.value.kind, caught.value.phase) == (Kind.HANG, "stop")


def test_a_signal_reaches_the_process_of_a_role_or_pid_and_its_end_is_no_engine_death(
    engine: Engine,
) -> None:
    core, worker = (
        call(engine.child, "leave_exec_grandchild"),
        call(engine.child, "leave_grandchild", hold_output=False),
    )
    engine.child.adopt_engine()
    with engine.lend(Loan(EarlyExitPolicy()), SchemaFilter()):
        assert {(p.pid, p.role) for p in engine.processes()[1:]} == {
            (core, "core"),
            (worker, "worker"),
        }
        assert engine.signal(signal.SIGKILL, "core").command == "sleep 600"
        assert not process_tree.wait_until_gone([psutil.Process(core)], LONG_S)
        with pytest.raises(UsageError, match=r"'core'.*no running process.*worker \d+"):
            engine.signal(signal.SIGTERM, "core")
        assert engine.signal(signal.SIGKILL, worker).role == "worker"
        assert call(engine.child, "echo", value=1) == 1
        assert not engine.child.engine_is_dead
        engine.signal(signal.SIGKILL)
        assert engine.wait_for_exit(all_processes=True) == -9


def test_other_processes_that_outlive_the_front_process_are_a_hang(engine: Engine) -> None:
    call(engine.child, "leave_exec_grandchild")
    engine.signal(signal.SIGTERM)
    with pytest.raises(
        DeadlineExceeded, match=r"it has ended, but .* these still run: \d+ \(sleep 600\)"
    ):
        engine.wait_for_exit(2.0, all_processes=True)
    assert (
        engine.child.stop(deadline_for("stop", None)) == ()
    )  # the test has asked for it: nothing is reported


def test_an_engine_that_died_before_the_signal_is_a_failure(engine: Engine) -> None:
    with pytest.raises(ChildDied):
        call(engine.child, "crash")
    with pytest.raises(ChildDied) as caught:
        engine.signal(signal.SIGTERM)
    assert caught.value.kind is Kind.ENGINE_DEATH
    assert not engine.spent


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_folder_to_import_from_reaches_every_process_behind_our_own_modules(
    agent: Agent, tmp_path: Path, start_method: str
) -> None:
    (tmp_path / "vllm_regress_target.py").write_text(
        "raise RuntimeError('this one must not be imported')"
    )
    (tmp_path / "regress_plugin.py").write_text("NAME = 'ours'")
    child = agent.start_child(
        "probe", deadline_for("start", None), start_method=start_method, import_path=[str(tmp_path)]
    )
    assert call(child, "plugin_names") == ["ours", "ours"]
    child.kill()


@pytest.mark.parametrize(
    ("arguments", "words"), [((0,), "not a signal"), ((15, 1), "no running process has this pid")]
)
def test_a_wrong_signal_harms_nothing(
    engine: Engine, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        engine.signal(*arguments)
    assert not engine.spent
    assert call(engine.child, "echo", value=1) == 1
