"""The index of fixes from a small repository."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.fixes.index import FixIndex, digest
from tools.fixes.build import grown
from tools.fixes.containment import cut

FIRST = "def step(request):\n    return request.tokens_of_prompt\n"
SECOND = (
    "def step(request):\n    if request.prompt is None:\n"
    '        raise ValueError("request without a prompt")\n    return request.tokens_of_prompt\n'
)
OTHER = "class Pool:\n    def allocate(self, number_of_blocks):\n        return self.free[:number_of_blocks]\n"
PICKED = OTHER.replace("return self.free", "self.check(number_of_blocks)\n        return self.free")
PICKED = PICKED.replace(
    "        return", "        self.count_of_blocks -= number_of_blocks\n        return"
)


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.days = 0
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        day = f"2025-01-{self.days + 1:02}T00:00:00"
        environment = {"GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day, "PATH": "/usr/bin:/bin"}
        environment |= {f"GIT_{who}_NAME": "A" for who in ("AUTHOR", "COMMITTER")}
        environment |= {f"GIT_{who}_EMAIL": "a@example.org" for who in ("AUTHOR", "COMMITTER")}
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    def commit(self, title: str, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.days += 1
        self.git("add", "-A")
        self.git("commit", "-q", "-m", title)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    path = tmp_path / "clone"
    path.mkdir()
    repository = Repository(path)
    repository.commit("Begin (#1)", {"vllm/engine.py": FIRST, "README": "x"})
    repository.commit("[Doc] Words (#2)", {"README": "y"})
    test = "import vllm\n\n\ndef test_prompt():\n    pass\n"
    files = {"vllm/engine.py": SECOND, "tests/test_engine.py": test}
    repository.commit("[Bugfix] Refuse requests without a prompt (#3)", files)
    repository.commit("Add a pool (#4)", {"vllm/core/pool.py": OTHER})
    repository.commit("Check the pool (#5)", {"vllm/core/pool.py": PICKED})
    return repository


def release(**files: str) -> dict[str, bytes]:
    paths = {"engine": "vllm/engine.py", "pool": "vllm/core/pool.py"}
    return {paths[name]: text.encode() for name, text in files.items()}


RELEASES = [
    ("0.7.0", release(engine=FIRST)),
    ("0.7.1", release(engine=SECOND)),
    ("0.8.0", release(engine=SECOND, pool=PICKED)),
]


def build(
    repository: Repository,
    releases: Sequence[tuple[str, dict[str, bytes]]] = RELEASES,
    before: FixIndex | None = None,
) -> FixIndex:
    return grown(before or FixIndex(), repository.path, "main", releases)


def test_a_change_has_functions_words_and_digests_of_removed_lines(repository: Repository) -> None:
    index = build(repository)
    assert [fix.number for fix in index.fixes] == [1, 3, 4, 5]
    fix = index.find("vllm#3")
    assert fix.title == "[Bugfix] Refuse requests without a prompt" and fix.date == "2025-01-04"
    assert fix.changed == {"engine.py": ["step"]} and fix.is_titled_fix
    # What title, functions and paths say is not said again.
    assert fix.terms.split() == ["request", "valueerror"]
    assert fix.tests == ("tests/test_engine.py::test_prompt",)
    assert index.find("vllm#5").changed == {"core/pool.py": ["allocate"]}
    assert index.find("vllm#1").removed == "" and digest(" a = 1 ") == digest("a = 1")


def test_the_first_release_is_the_one_whose_sources_have_the_lines(repository: Repository) -> None:
    index = build(repository)
    firsts = {fix.number: index.first_release(fix) for fix in index.fixes}
    assert firsts == {1: "0.7.0", 3: "0.7.1", 4: "0.8.0", 5: "0.8.0"}
    assert index.dates == ["2025-01-02", "2025-01-04", "2025-01-06"]


def test_a_change_picked_for_a_release_is_in_it_though_changes_before_it_are_not(
    repository: Repository,
) -> None:
    for number in (6, 8, 9):
        text = f"def more_{number}():\n    return 'a long text of {number}'\n"
        repository.commit(f"Change much (#{number})", {f"vllm/more_{number}.py": text})
    # One of the lines stands in the file already.
    more = "def last_in_the_file(self, number_of_blocks):\n    return self.with_many_letters\n"
    more += "    self.count_of_blocks -= number_of_blocks\n"
    repository.commit("[Bugfix] Last (#7)", {"vllm/core/pool.py": PICKED + more})
    picked = ("0.8.1", release(engine=SECOND, pool=PICKED + more))
    index = build(repository, [*RELEASES, picked])
    assert index.first_release(index.find("vllm#7")) == "0.8.1"
    assert [index.first_release(index.find(f"vllm#{n}")) for n in (6, 8, 9)] == [None] * 3
    assert build(repository, [RELEASES[-1], picked], build(repository)) == index


def test_fixes_of_kernels_and_requirements_are_in_the_release_that_was_cut_after_them(
    repository: Repository,
) -> None:
    repository.commit("Speed up a kernel (#6)", {"csrc/sampler.cu": "a"})
    repository.commit("[Bugfix] Empty sequences in a kernel (#7)", {"csrc/sampler.cu": "b"})
    repository.commit("Use the pool (#8)", {"vllm/core/pool.py": PICKED + "POOL_OF_BLOCKS = 8\n"})
    last = release(engine=SECOND, pool=PICKED + "POOL_OF_BLOCKS = 8\n")
    index = build(repository, [*RELEASES, ("0.8.1", last)])
    fix = index.find("vllm#7")
    assert fix.changed == {"csrc/sampler.cu": []} and fix.files == ["csrc/sampler.cu"]
    assert index.first_release(fix) == "0.8.1" and 6 not in [fix.number for fix in index.fixes]


def test_releases_after_the_history_have_what_differs_from_the_one_before(
    repository: Repository,
) -> None:
    renamed = PICKED.replace("count_of_blocks", "blocks_in_use")
    later = release(engine=SECOND, pool=f"# A comment alone.\n{renamed}")
    releases = [*RELEASES, ("0.9.0", later), ("0.9.1", later)]
    index = build(repository, releases)
    (difference,) = index.differences
    assert (difference.number, difference.name, difference.first) == (0, "", 3)
    assert difference.changed == {"core/pool.py": ["allocate"]}
    assert {"count_of_blocks", "blocks_in_use"} <= set(difference.terms.split())
    assert digest("self.count_of_blocks -= number_of_blocks") in difference.removed
    assert build(repository, releases[2:], build(repository, releases[:3])) == index
    assert index.later_differences("0.8.0") == [0] and index.later_differences("0.9.0") == []


def test_an_index_is_the_same_after_it_was_written(repository: Repository, tmp_path: Path) -> None:
    index = build(repository)
    file = tmp_path / "fixes.zip"
    file.write_bytes(index.content())
    assert FixIndex.load(file) == index


def test_an_update_gives_the_same_index_as_a_build(repository: Repository) -> None:
    before = build(repository, RELEASES[:2])
    assert [fix.first for fix in before.fixes] == [0, 1, 2, 2]
    after = build(repository, RELEASES[1:], before)
    assert after == build(repository)


def test_an_update_without_news_changes_nothing(repository: Repository) -> None:
    index = build(repository)
    assert build(repository, [], index) == index


def test_the_cut_lies_where_changes_stop_to_be_there() -> None:
    assert cut([0.4, 0.9, None, 1.0, 0.1, 0.0, 0.0]) == 4
    assert cut([0.0, 0.1, 0.0]) == 0
