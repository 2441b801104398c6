"""Two xdist workers use one environment: each spec has one engine, no port is used twice, and
nothing is left. ``ROUNDS=20`` repeats it."""

from __future__ import annotations

import json
import os
import socket

import psutil
import pytest

from tests.helpers import shared_memory

pytestmark = pytest.mark.engine
ROUNDS = int(os.environ.get("ROUNDS", "1"))

TESTS = """
    import json, os
    import pytest

    def note(engine, **more):
        line = {"spec": repr((engine.spec, type(engine).__name__)), "pid": engine.child.pid, "worker": os.environ["PYTEST_XDIST_WORKER"], **more}
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps(line) + "\\n")

    @pytest.mark.vllm_engine(generation="V1", max_model_len=[128, 256, 512], fresh=False)
    @pytest.mark.parametrize("n", range(4))
    def test_offline(vllm_engine, n):
        (answer,) = vllm_engine.generate("Hello", {"n": n + 1, "max_tokens": 2})
        assert len(answer["outputs"]) == n + 1
        note(vllm_engine)

    @pytest.mark.vllm_engine(front="serve", generation="V1", max_model_len=[128, 256])
    @pytest.mark.parametrize("n", range(3))
    def test_serve(vllm_server, n):
        assert len(vllm_server.chat([{"role": "user", "content": "Hello"}], n=n + 1, max_tokens=2)["choices"]) == n + 1
        note(vllm_server, port=vllm_server.client.base_url.port)
"""


@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.usefixtures("user_caches")
def test_two_workers_share_nothing_and_start_no_engine_twice(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, round_number: int
) -> None:
    notes = pytester.path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.setenv("VLLM_REGRESS_TEST_MARK", str(notes))
    pytester.makepyfile(TESTS)
    before = shared_memory.unmapped_files()
    result = pytester.runpytest_subprocess(
        "-n2",
        "--dist=loadgroup",
        "--vllm-env=vllm-0.8.5",
        "--vllm-leftovers=fail",
        "-p",
        "no:cacheprovider",
    )
    result.assert_outcomes(passed=18)

    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    assert {line["worker"] for line in lines} == {"gw0", "gw1"}
    engines = {(line["spec"], line["pid"]) for line in lines}
    assert len(engines) == len({spec for spec, _ in engines}) == 5
    ports = {line["port"]: line["spec"] for line in lines if "port" in line}
    assert sorted(set(ports.values())) == sorted(ports.values())
    assert not [port for port in ports if _answers(port)]
    assert not _marked(str(notes))
    assert not shared_memory.leaked_since(before)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _marked(mark: str) -> list[str]:
    """Return the processes that the run started and that are still alive."""
    alive = []
    for process in psutil.process_iter(["environ", "name", "status"]):
        if (process.info["environ"] or {}).get("VLLM_REGRESS_TEST_MARK") == mark and process.info[
            "status"
        ] != psutil.STATUS_ZOMBIE:
            alive.append(f"{process.pid} {process.info['name']}")
    return alive
