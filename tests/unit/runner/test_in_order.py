"""What jobs write side by side is shown one after the other, whichever ends first."""

from __future__ import annotations

import io
from pathlib import Path

from pytest_vllm_regress.runner.in_order import InOrder
from pytest_vllm_regress.runner.runner import Job


def test_the_first_as_it_comes_and_the_others_in_their_turn(tmp_path: Path) -> None:
    jobs = [(Job(name, (), {}), tmp_path / name) for name in ("first", "second", "third")]
    out = io.StringIO()
    show = InOrder(jobs, lambda line: print(line, file=out), out)

    def new() -> str:
        said = out.getvalue()
        out.seek(0)
        out.truncate()
        return said

    assert new() == "[1/3] first: \n"
    show(())
    assert new() == ""  # its environment is being built: there is no file yet
    first, second, third = (file for _, file in jobs)
    first.write_bytes("1 é".encode()[:-1])
    second.write_text("2 whole\n")
    show({("second", 0)})
    assert new() == "1 "
    with first.open("ab") as more:
        more.write("é".encode()[1:] + b" end\n")
    show({("second", 0)})
    assert new() == "é end\n"
    show({("second", 0), ("first", 0)})
    assert new() == "[2/3] second: \n2 whole\n[3/3] third: \n"
    third.write_bytes(b"\xff\n")
    show({("second", 0), ("first", 0), ("third", 0)})
    assert new() == "\N{REPLACEMENT CHARACTER}\n"
    show({("second", 0), ("first", 0), ("third", 0)})
    assert new() == ""
