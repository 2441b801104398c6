"""Signals to the processes of a real server, and modules that a case brings along."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
ENVIRONMENT = "vllm-0.8.5"
SCHEDULER = """
    import os
    from vllm.v1.core.sched.scheduler import Scheduler

    class Counting(Scheduler):
        def schedule(self):
            print(f"process {os.getpid()} schedules", flush=True)
            return super().schedule()
"""
TESTS = """
    import signal
    import pytest

    pytestmark = pytest.mark.vllm_engine(
        front="serve", generation="V1", tp=2, import_path=["plugins"], extra={"scheduler_cls": "my_scheduler.Counting"}
    )

    def test_the_engine_core_imports_a_class_of_the_case(vllm_server):
        vllm_server.chat([{"role": "user", "content": "Hello"}], max_tokens=2)
        (core,) = (process for process in vllm_server.processes() if process.role == "core")
        assert f"process {core.pid} schedules" in vllm_server.log()

    def test_a_server_that_gets_sigterm_ends_with_an_exit_code_and_a_line_in_its_log(vllm_server):
        roles = [process.role for process in vllm_server.processes() if process.role != "helper"]
        assert roles == ["server", "core", "worker", "worker"], vllm_server.processes()
        vllm_server.signal(signal.SIGTERM)
        assert vllm_server.wait_for_exit(all_processes=True) == 0
        assert "Shutting down FastAPI HTTP server." in vllm_server.log()
        assert "teardown complete" not in vllm_server.log()
        assert not any(process.alive for process in vllm_server.processes() if process.role != "helper")

    def test_the_next_test_gets_another_server_whose_core_may_be_killed(vllm_server):
        assert vllm_server.signal(signal.SIGKILL, "core").role == "core"
        vllm_server.signal(signal.SIGKILL)
        assert vllm_server.wait_for_exit() == -9  # vLLM 0.8.5 leaves both workers behind then

    def test_a_pythonpath_is_refused(request):
        from pytest_vllm_regress import EngineSpec, UsageError
        with pytest.raises(UsageError, match="import_path"):
            EngineSpec(env={"PYTHONPATH": "plugins"})
"""


@pytest.mark.usefixtures("user_caches")
def test_servers_are_steered(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("plugins").joinpath("__init__.py").unlink()
    pytester.makepyfile(**{"plugins/my_scheduler": SCHEDULER, "test_steered": TESTS})
    result = pytester.runpytest_subprocess(
        f"--vllm-env={ENVIRONMENT}",
        "-p",
        "no:cacheprovider",
        "-v",
        "--vllm-leftovers=fail",
        "test_steered.py",
    )
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*left behind by engines*")
