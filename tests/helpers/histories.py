"""A Git history with a failure, and a fake runner that reads the code of a commit instead of
running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind
from pytest_vllm_regress.runner.batch import Batch, RunOutcome
from tests.helpers.repositories import RepositoryBuilder

BROKEN, WORKS = "broken = True\n", "broken = False\n"


def fixed_by_a_merge(place: Path) -> RepositoryBuilder:
    """A failure from the first commit on, fixed on a branch that is merged."""
    builder = RepositoryBuilder(place)
    builder.commit("first (#1)", {"vllm/__init__.py": "", "vllm/engine.py": BROKEN})
    builder.git("tag", "v0.1")
    builder.commit("docs (#2)", {"docs/a.md": ""})
    builder.commit("a kernel (#3)", {"csrc/k.cu": ""})
    builder.commit(
        "a refactoring that does not import (#4)",
        {"vllm/engine.py": "broken = True\nimport nothing\n"},
    )
    builder.commit(
        "moved (#5)",
        {"vllm/engine.py": None, "vllm/core/engine.py": BROKEN, "vllm/core/__init__.py": ""},
    )
    builder.git("checkout", "--quiet", "-b", "fix")
    builder.commit("work in progress", {"vllm/core/engine.py": "broken = True  # soon\n"})
    builder.commit("fixed", {"vllm/core/engine.py": WORKS})
    builder.git("checkout", "--quiet", "main")
    builder.commit("tests (#6)", {"tests/t.py": ""})
    builder.merge("fix", "Merge pull request #7 from fix")
    builder.commit("after (#8)", {"vllm/more.py": ""})
    builder.git("tag", "v0.2")
    return builder


class StandIn:
    """Fake runner that reads the code of a commit.

    ``chance``: whether a broken commit shows the failure, by run number.
    """

    def __init__(
        self,
        builder: RepositoryBuilder,
        chance: Callable[[int], bool] = lambda run: True,
        interrupt_at: int = -1,
    ) -> None:
        self.builder = builder
        self.ran: list[str] = []
        self.chance = chance
        self.interrupt_at = interrupt_at

    def run(self, jobs: Sequence[Batch]) -> RunOutcome:
        (job,) = jobs
        if len(self.ran) == self.interrupt_at:
            return RunOutcome(RunResult(), interrupted=True)
        commit = job.environment.partition("@")[2]
        self.ran.append(commit)
        files = self.builder.git("ls-tree", "-r", "--name-only", commit).splitlines()
        code = self.builder.git(
            "show", f"{commit}:{next(name for name in files if name.endswith('engine.py'))}"
        )
        if "import nothing" in code:
            verdict, observed = Verdict.INCONCLUSIVE, Observation(Kind.EXCEPTION, "import")
        else:
            bad = "True" in code and self.chance(len(self.ran))
            verdict, observed = Verdict.REPRODUCED if bad else Verdict.FIXED, None
        result = TestResult(
            "demo", "t", verdict, "as seen", "sim", job.environment, observation=observed
        )
        return RunOutcome(RunResult((result,)))
