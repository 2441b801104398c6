"""Whether the lines that a fix removed still stand in the installed sources of vLLM."""

from __future__ import annotations

from pathlib import Path

from ...environments.installed import is_environment, open_environment, open_interpreter
from ...environments.recipes import find_file, load
from ...environments.sources import names_interpreter
from ...errors import UsageError
from .index import DIGEST, Fix, digest


class InstalledSources:
    """The installed sources of vLLM, in the folder of the package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, frozenset[str]] = {}

    @classmethod
    def of(cls, environment: str) -> InstalledSources:
        """Return those of an environment: the name of one that is built, or the path of its folder
        or interpreter, which is started to ask for its search path.

        Raises ``UsageError`` if it is not there or has no vLLM.
        """
        from ...environments.cache import EnvironmentCache  # Linux only

        path = Path(environment)
        if not names_interpreter(environment):
            built = EnvironmentCache().built(load(find_file()).resolve(environment))
            if built is None:
                raise UsageError(
                    f"--env {environment}: is not built: vllm-regress env build {environment}"
                )
            path = built
        is_folder = is_environment(path)
        interpreter = open_environment(path.absolute()) if is_folder else open_interpreter(path)
        for place in interpreter.path:
            if (place / "vllm" / "__init__.py").is_file():
                return cls(place / "vllm")
        raise UsageError(f"--env {environment}: has no vLLM")

    def said_of(self, fix: Fix) -> str:
        """Return in words how many of the lines that a fix removed are still there; empty if it
        removed none."""
        count = len(fix.removed) // DIGEST
        present = self.remaining(fix)
        if not count:
            return ""
        if not present:
            return "none of the lines that it removed is installed: it may be in already"
        return f"{present} of {count} lines that it removed are still installed"

    def remaining(self, fix: Fix) -> int:
        """Return how many of the lines that a fix removed are still there."""
        removed = [fix.removed[i : i + DIGEST] for i in range(0, len(fix.removed), DIGEST)]
        present = frozenset().union(*map(self._digests_of, fix.changed))
        return sum(line in present for line in removed)

    def _digests_of(self, path: str) -> frozenset[str]:
        if path not in self._digests:
            file = self._folder / path
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
            self._digests[path] = frozenset(map(digest, text.split("\n")))
        return self._digests[path]
