"""Upstream's tests of one revision or release as a folder, and the names of the hub that they ask
for.

Nothing is imported or executed here.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...engines.checkpoints.hub_cache import NAME
from ...environments.git import Repository
from ...environments.wheels import read_source_distribution, source_distribution
from ...errors import UsageError
from ...util.files import create_below, parts_below, read_below

FOLDERS = ("tests", "examples")
_SETTINGS = "pyproject.toml"
_MAX_FILE = 16 * 1024 * 1024
_MAX_TEST = 2 * 1024 * 1024
_SHARED = (
    "tests/conftest.py",
    "tests/utils.py",
    "tests/entrypoints/conftest.py",
    "tests/v1/conftest.py",
)
_NOT_OWNERS = frozenset(
    {"application", "audio", "examples", "image", "multipart", "tests", "text", "v1", "v2", "video"}
)
"""First parts of texts that look like names of the hub: media types, addresses and paths."""
_FILES = (".py", ".json", ".jsonl", ".txt", ".so", ".jinja")


@dataclass(frozen=True)
class TestTree:
    """Upstream's tests at ``revision``, a commit id or a tag such as ``v0.33.0``. The folder ``root``
    has ``tests``, ``examples`` and pytest's settings, but not the package vllm."""

    __test__ = False

    root: Path
    revision: str

    def select(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the test files that ``paths`` (files or folders, from the root of the tree) name.

        Raises ``UsageError`` for one without any.
        """
        selected: dict[str, None] = {}
        for path in paths:
            relative = "/".join(parts_below(path.rstrip("/")))
            place = self.root / relative
            files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
            if not files or not relative.startswith("tests/"):
                raise UsageError(
                    f"{path}: no test file at {self.revision[:10]}. Give files or folders such as tests/entrypoints/openai"
                )
            selected.update(dict.fromkeys(file.relative_to(self.root).as_posix() for file in files))
        return tuple(selected)

    def hub_names(self, files: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the hub in test files and in what these share: texts of the form
        OWNER/NAME that are no paths of the tree."""
        names: dict[str, None] = {}
        for file in dict.fromkeys((*_SHARED, *files, *self._helpers(files))):
            exists = (self.root / file).is_file()
            for text in texts_in((exists and read_below(self.root, file, _MAX_TEST)) or b""):
                if NAME.fullmatch(text) and not self._is_path(text):
                    names[text] = None
        return tuple(names)

    def mentions(self, name: str, files: Iterable[str]) -> bool:
        """Return whether one of the test files contains this name."""
        return any(
            name.encode() in (read_below(self.root, file, _MAX_TEST) or b"") for file in files
        )

    def _helpers(self, files: Iterable[str]) -> Iterator[str]:
        """Yield the other modules beside the test files, from which they import names."""
        for folder in {PurePosixPath(file).parent for file in files}:
            for path in sorted((self.root / folder).glob("*.py")):
                if not path.name.startswith("test_"):
                    yield path.relative_to(self.root).as_posix()

    def _is_path(self, text: str) -> bool:
        is_named_as_path = (
            text.partition("/")[0] in _NOT_OWNERS
            or text.endswith(_FILES)
            or ".." in text
            or "--" in text
        )
        return is_named_as_path or (self.root / text).exists()


def texts_in(source: bytes) -> tuple[str, ...]:
    """Return the text constants of Python source; none of a source that cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in it
            nodes = ast.walk(ast.parse(source))
            return tuple(
                node.value
                for node in nodes
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def write_tree(
    repository: Repository | None,
    revision: str,
    root: Path,
    *,
    release: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> TestTree:
    """Write the tests of a revision below the empty folder ``root``. Links and submodules are left
    out.

    ``release``: the version whose source distribution has the tests if the repository does not
    know the revision, or has no tests there. Raises ``UsageError`` for an unknown revision, one
    without tests, and files or paths that are not allowed (``environments/git.py``), and
    ``BuildError`` for a source distribution that cannot be had.
    """
    if repository is not None and not (release and not repository.has(revision)):
        revision = repository.commit(revision).id
        files = _files_of_commit(repository, revision)
    else:
        files = {}
    if release and not _has_tests(files):
        revision = f"v{release}"
        files = read_source_distribution(source_distribution("vllm", release, say), _is_wanted)
    if not _has_tests(files):
        place = "the source distribution" if repository is None else str(repository.place)
        raise UsageError(
            f"{place}: {revision[:10]} has no folder tests. Give a clone of vLLM's sources"
        )
    for path, content in {_SETTINGS: b"[tool.pytest.ini_options]\n", **files}.items():
        if len(content) <= _MAX_FILE:
            try:
                create_below(root, path, content)
            except OSError as error:  # a file and a folder of the same name
                raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return TestTree(root, revision)


def _is_wanted(path: str) -> bool:
    return path == _SETTINGS or path.partition("/")[0] in FOLDERS


def _has_tests(files: Iterable[str]) -> bool:
    return any(path.startswith("tests/") for path in files)


def _files_of_commit(repository: Repository, commit: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for folder in FOLDERS:
        blobs = repository.files(commit, folder)
        files.update(zip(blobs, repository.contents(blobs.values()), strict=True))
    settings = repository.read(commit, _SETTINGS)
    return files if settings is None else {**files, _SETTINGS: settings}
