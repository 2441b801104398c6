"""A history with a failure in it, and a stand-in that runs its commits by reading their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner import runner as runs
from tests.helpers.repositories import Maker

BROKEN, WORKS = "broken = True\n", "broken = False\n"


def mended_by_a_merge(place: Path) -> Maker:
    """A failure that is there from the first commit and mended on a branch that is merged."""
    made = Maker(place)
    made.commit("first (#1)", {"vllm/__init__.py": "", "vllm/engine.py": BROKEN})
    made.git("tag", "v0.1")
    made.commit("docs (#2)", {"docs/a.md": ""})
    made.commit("a kernel (#3)", {"csrc/k.cu": ""})
    made.commit("a refactoring that does not import (#4)", {"vllm/engine.py": "broken = True\nimport nothing\n"})
    made.commit("moved (#5)", {"vllm/engine.py": None, "vllm/core/engine.py": BROKEN, "vllm/core/__init__.py": ""})
    made.git("checkout", "--quiet", "-b", "mend")
    made.commit("work in progress", {"vllm/core/engine.py": "broken = True  # soon\n"})
    made.commit("mended", {"vllm/core/engine.py": WORKS})
    made.git("checkout", "--quiet", "main")
    made.commit("tests (#6)", {"tests/t.py": ""})
    made.merge("mend", "Merge pull request #7 from mend")
    made.commit("after (#8)", {"vllm/more.py": ""})
    made.git("tag", "v0.2")
    return made


class StandIn:
    """Runs a commit by reading its code. ``chance``: whether a broken one shows it, by the number of the run."""

    def __init__(self, made: Maker, chance: Callable[[int], bool] = lambda run: True, interrupt_at: int = -1) -> None:
        self.made = made
        self.ran: list[str] = []
        self.chance = chance
        self.interrupt_at = interrupt_at

    def run(self, jobs: Sequence[runs.Job]) -> runs.Outcome:
        (job,) = jobs
        if len(self.ran) == self.interrupt_at:
            return runs.Outcome(RunResult(), interrupted=True)
        commit = job.environment.partition("@")[2]
        self.ran.append(commit)
        files = self.made.git("ls-tree", "-r", "--name-only", commit).splitlines()
        code = self.made.git("show", f"{commit}:{next(name for name in files if name.endswith('engine.py'))}")
        if "import nothing" in code:
            verdict, symptom = Verdict.INCONCLUSIVE, "[import] ModuleNotFoundError: No module named 'nothing'"
        else:
            verdict, symptom = (
                (Verdict.REPRODUCED if "True" in code and self.chance(len(self.ran)) else Verdict.FIXED),
                "",
            )
        seen = TestResult("demo", "t", verdict, "as seen", "sim", job.environment, symptom=symptom)
        return runs.Outcome(RunResult((seen,)))
