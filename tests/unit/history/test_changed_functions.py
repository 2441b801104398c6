"""Which functions a patch changes, and which of them a process under test executes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.history.case_coverage import CaseCoverage
from pytest_vllm_regress.history.changed_functions import ChangedFunctions, changed_functions
from pytest_vllm_regress.target_site.vllm_regress_target.reached import PLAN

BEFORE = '''"""A module."""
LIMIT = 1

class Pool:
    """A pool."""

    def take(self):
        """Take."""
        def inner():
            return 1
        return inner()

    async def give(self):
        return 2

def free():
    return 3
'''


@pytest.mark.parametrize(
    ("old", "new", "names", "outside"),
    [
        ("return 3", "return 3  # three", [], False),
        ("A pool", "Pools", [], False),
        ('"""Take."""', '"""Take one."""', [], False),
        ('"""A module."""', "", [], False),
        ("return 2", "return 20", ["Pool.give"], False),
        ("return 1\n", "return 10\n", ["Pool.take.inner"], False),
        ("return inner()", "return -inner()", ["Pool.take"], False),
        ("def free():", "def free(n=1):", ["free"], False),
        ("def free():", "def more():\n    return 4\n\ndef free():", ["more"], True),
        ("LIMIT = 1", "LIMIT = 2", [], True),
        ("class Pool:", "class Pool(:", [], True),
    ],
)
def test_only_other_code_is_a_change(old: str, new: str, names: list[str], outside: bool) -> None:
    before, after = (
        {"vllm/pool.py": text.encode(), "vllm/gone.py": b""}
        for text in (BEFORE, BEFORE.replace(old, new, 1))
    )
    del after["vllm/gone.py"]
    changed = changed_functions(["vllm/pool.py", "vllm/gone.py", "vllm/x.cu"], before, after)
    assert list(changed.names) == [f"vllm.pool:{name}" for name in names]
    assert changed.outside == (("vllm/pool.py",) if outside else ())


PROGRAM = """
import asyncio, os, sys, traceback
from vllm_regress_target import reached
reached.install()
import vllm.pool
pool = vllm.pool.Pool()
pool.take()
if os.fork() == 0:
    pool.take()
    asyncio.run(pool.give())
    os._exit(0)
os.wait()
"""


def test_each_process_records_the_functions_that_it_executes(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    (tmp_path / "vllm/pool.py").write_text(BEFORE)
    names = ("Pool.take", "Pool.take.inner", "Pool.give", "free")
    changed = ChangedFunctions({"vllm.pool": names}, ())
    with pytest.MonkeyPatch.context() as patch, changed.recorded(tmp_path / "record"):
        patch.setenv("PYTHONPATH", f"{TARGET_SITE}:{tmp_path}")
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    assert changed.not_executed(tmp_path / "record") == ("vllm.pool:free",)
    lines = (tmp_path / "record/executed.txt").read_text().split()
    assert sorted(lines) == ["0", "1", "2"]


EPOCHS = """
from vllm_regress_target import reached
reached.install()
import pool
for epoch in b"\\0\\0\\1":
    with open("epoch", "r+b") as file:
        file.write(bytes([epoch]))
    pool.free()
"""


def test_a_process_records_a_function_again_for_another_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pool.py").write_text(BEFORE)
    with ChangedFunctions({"pool": ("free",)}, ()).recorded(tmp_path):
        monkeypatch.setenv("PYTHONPATH", f"{TARGET_SITE}:{tmp_path}")
        subprocess.run([sys.executable, "-c", EPOCHS], check=True, cwd=tmp_path)
    assert (tmp_path / "executed.txt").read_text() == "0\n0\n"


def test_recorded_coverage_is_read_as_it_was_written(tmp_path: Path) -> None:
    executed = {"b": {"m:f"}, "a": {"m:g", "m:f"}}
    coverage = CaseCoverage.of("1.0", executed)
    coverage.save(tmp_path / "coverage.zip")
    assert CaseCoverage.load(tmp_path / "coverage.zip") == coverage
    assert [coverage.executed_by(name) for name in "abc"] == [*map(executed.get, "ab"), set()]


def test_the_recorded_coverage_tells_cases_apart() -> None:
    name, coverage = (
        "vllm.v1.engine.parallel_sampling:ParentRequest.get_outputs",
        CaseCoverage.load(),
    )
    cases = {case_id for case_id in coverage.by_case if name in coverage.executed_by(case_id)}
    assert "vllm-17173" in cases and len(cases) < len(coverage.by_case) / 10


def test_positions_and_source_of_a_recorded_function_stay(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(BEFORE.replace("return 3", "raise ValueError(3)"))
    (tmp_path / "epoch").write_bytes(b"\0")
    paths = {"record": str(tmp_path / "executed.txt"), "epoch": str(tmp_path / "epoch")}
    plan = {**paths, "functions": {"pool": {"free": 0}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    program = (
        "import traceback; from vllm_regress_target import reached; reached.install(); import pool\n"
        "try: pool.free()\nexcept ValueError: print(traceback.format_exc(), pool.Pool.take.__doc__)"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TARGET_SITE}:{tmp_path}")
        patch.setenv(PLAN, str(tmp_path / "plan.json"))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    line = BEFORE.splitlines().index("    return 3") + 1
    assert f'pool.py", line {line}, in free\n    raise ValueError(3)' in done.stdout
    assert "Take." in done.stdout
