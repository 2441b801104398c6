"""Promises of SECURITY.md that can be tested by searching the code or with hostile files."""

from __future__ import annotations

import ast
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.loading import MAX_BYTES, load_all_cases
from pytest_vllm_regress.cases.results import (
    MAX_DOSSIER,
    RunResult,
    TestResult,
    read_results,
    write_results,
)
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments import install as installing
from pytest_vllm_regress.environments import install as sidecar
from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.errors import CaseFileError, UsageError
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.output.table import lines
from tests.helpers import ROOT

PACKAGE = ROOT / "pytest_vllm_regress"
CONTROLLER = sorted(
    path for path in PACKAGE.rglob("*.py") if not {"target_site", "data"} & set(path.parts)
)
RUNS_DATA = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
}
CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_KEYWORDS = {("shell", True), ("allow_pickle", True), ("trust_remote_code", True)}


def is_load_with_safe_loader(call: ast.Call, tree: ast.AST) -> bool:
    """Return whether a call is ``yaml.load_all(text, Loader)``, where all bases of the class
    ``Loader`` in the same file are safe loaders."""
    if ast.unparse(call.func) != "yaml.load_all" or len(call.args) != 2 or call.keywords:
        return False
    bases = [
        ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == ast.unparse(call.args[1])
        for base in node.bases
    ]
    safe = ("yaml.SafeLoader", "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)")
    return bool(bases) and all(base in safe for base in bases)


def unsafe(tree: ast.AST) -> Iterator[str]:
    """Yield everything that would execute or unpickle its input."""
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name != "yaml" or alias.asname]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield f"line {node.lineno}: {node.func.id}()"
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "load"
                and ast.unparse(node.func.value) in ("np", "numpy", "torch")
            ):
                yield f"line {node.lineno}: {ast.unparse(node.func)}()"
            called = ast.unparse(node.func)
            if (
                called.startswith("yaml.")
                and not called.startswith(("yaml.safe_load", "yaml.parse"))
                and not is_load_with_safe_loader(node, tree)
            ):
                yield f"line {node.lineno}: {ast.unparse(node.func)}()"
            for keyword in node.keywords:
                if (
                    isinstance(keyword.value, ast.Constant)
                    and (keyword.arg, keyword.value.value) in UNSAFE_KEYWORDS
                ):
                    yield f"line {node.lineno}: {keyword.arg}=True"
        for name in modules:
            if name.split(".")[0] in RUNS_DATA:
                yield f"line {node.lineno}: import {name}"  # type: ignore[attr-defined]  # an import statement has a line


@pytest.mark.parametrize("path", CONTROLLER, ids=lambda path: path.name)
def test_the_controller_neither_executes_nor_unpickles_its_input(path: Path) -> None:
    assert not list(unsafe(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(x)",
        "eval(x)",
        "subprocess.run(x, shell=True)",
        "np.load(x, allow_pickle=True)",
        "from yaml import load",
        "yaml.load(x, yaml.SafeLoader)",
        "yaml.load_all(x, yaml.SafeLoader)",
        "class L(yaml.UnsafeLoader): ...\nyaml.load_all(x, L)",
        "class L(yaml.SafeLoader, yaml.FullLoader): ...\nyaml.load_all(x, L)",
        "yaml.load_all(x, Loader)",
    ],
)
def test_the_search_finds_unsafe_code(code: str) -> None:
    assert list(unsafe(ast.parse(code)))


def test_every_package_of_every_lock_has_a_hash() -> None:
    locks = sorted((ROOT / "locks").rglob("*.txt"))
    assert len(locks) > 5
    for lock in locks:
        text = lock.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                assert re.fullmatch(
                    r"[A-Za-z0-9._-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+\s*", line
                ), f"{lock.name}: {line[:100]}"


def test_locks_are_installed_with_hashes_and_without_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def record(arguments: list[object], **_: object) -> str:
        commands.append([str(argument) for argument in arguments])
        return ""

    monkeypatch.setattr("pytest_vllm_regress.environments.uv.run", record)
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    file = load(ROOT / "environments.toml")
    for recipe in file.recipes.values():
        if recipe.lock is not None:
            installing.install(recipe, recipe.lock, tmp_path / "bin" / "python", lambda line: None)
    sidecar.ensure_sidecar("ray-2.31.0", tmp_path / "bin" / "python")
    installs = [command for command in commands if "install" in command]
    assert len(installs) > 5
    assert all({"--require-hashes", "--no-deps", "-r"} <= set(command) for command in installs)


@pytest.mark.parametrize(
    "name", ["../ray-2.31.0", "/etc/passwd", "..", "", ".", "a/../ray-2.31.0", "none"]
)
def test_sidecars_are_selected_by_name_not_by_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown sidecar"):
        sidecar.ensure_sidecar(name, tmp_path)


# Files from elsewhere.

CASE = (ROOT / "cases" / "vllm-17173" / "case.toml").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('id = "vllm-17173"', 'id = "../../etc/passwd"'),
        ('id = "vllm-17173"', 'id = "a/b"'),
        ('id = "vllm-17173"', 'id = "a\\nb"'),
        ('id = "vllm-17173"', 'id = "{}"'.format("a" * 65)),
        ("n results requested, one returned", "\\u001b[2J\\u001b[31mred"),
        ("n results requested, one returned", "\\u202egnp.exe"),
        ("n results requested, one returned", "x" * 201),
        ("https://github.com/vllm-project/vllm/issues/17173", "javascript:alert(1)"),
        ("https://github.com/vllm-project/vllm/issues/17173", 'https://example.org/\\"><script>'),
        ("https://github.com/vllm-project/vllm/issues/17173", "file:///etc/passwd"),
        ('affected = ["vllm-0.8.4", "vllm-0.7.3"]', 'affected = ["../../x"]'),
        ('affected = ["vllm-0.8.4", "vllm-0.7.3"]', 'affected = ["/usr/bin/python3"]'),
        ('vllm = ">=0.7,<0.8.5"', '"../vllm" = ">=0"'),
        ('vllm = ">=0.7,<0.8.5"', 'vllm = ">=0; import os"'),
        ("expected \\\\d+ results, got [1-9]", "(" * 1500),
        ('workaround = "', f'workaround = "{"x" * 5000}'),
        ('title = "', f'# {"x" * MAX_BYTES}\ntitle = "'),
    ],
)
def test_hostile_case_files_are_refused_in_plain_words(
    tmp_path: Path, before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cases" / "demo"
    folder.mkdir(parents=True)
    assert before in CASE
    (folder / "case.toml").write_text(CASE.replace(before, after))
    with pytest.raises(CaseFileError) as caught:
        load_all_cases(tmp_path / "cases")
    assert str(folder / "case.toml") in str(caught.value)
    assert len(str(caught.value)) < 5000
    assert cli.main(["--cases", str(tmp_path / "cases"), "list"]) == 2
    printed = capsys.readouterr().err
    assert not re.search(r"[^\x20-\x7e\n]", printed.replace(str(tmp_path), ""))


def test_links_out_of_the_case_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    outside.write_text(CASE)
    for name, target in (("link", outside), ("fifo", None)):
        folder = tmp_path / name / "demo"
        folder.mkdir(parents=True)
        if target:
            (folder / "case.toml").symlink_to(target)
        else:
            os.mkfifo(folder / "case.toml")
        with pytest.raises(CaseFileError, match=r"leads out of|not a regular file"):
            load_all_cases(tmp_path / name)


HOSTILE = "<script>alert(1)</script>\x1b[2J\x1b]0;title\x07\x00\u202e\ud800 ]]> | **b** `c` @x [l](javascript:x) ../../etc/passwd \"' & &amp; \r\n# h"
RESULT = TestResult("../../etc/passwd", HOSTILE, Verdict.REGRESSED, HOSTILE, "sim", HOSTILE, {HOSTILE[:50]: HOSTILE}, 1.0, 1.0, HOSTILE[:64], HOSTILE,
                    HOSTILE, HOSTILE, not_expected_because=HOSTILE)  # fmt: skip


def test_hostile_texts_in_results_stay_text(tmp_path: Path) -> None:
    write_results(tmp_path / "out.json", RunResult((RESULT,), (HOSTILE,)))
    run = read_results(tmp_path / "out.json")
    assert run.results[0].reason == RESULT.reason
    html, markdown, junit, table = (
        page(run),
        markdown_text(run),
        junit_xml(run),
        "\n".join(lines(run)),
    )
    assert "<script>alert" not in html
    assert 'href="javascript:' not in html
    assert "<script" not in re.sub(r"(`+).*?\1", "", markdown)  # inside code it is plain text
    ElementTree.fromstring(junit)
    for text in (html, markdown, junit, table):
        assert not re.search(r"[\x00\x07\x1b]", text)


def test_oversized_fields_are_truncated_or_rejected(tmp_path: Path) -> None:
    write_results(
        tmp_path / "large.json",
        RunResult(
            (TestResult("a", "t", Verdict.FIXED, "x" * 10**6, "sim", "e", dossier="y" * 10**7),)
        ),
    )
    run = read_results(tmp_path / "large.json")
    assert len(run.results[0].dossier) <= MAX_DOSSIER
    plain = json.loads((tmp_path / "large.json").read_text())
    for key, value in (
        ("case_id", "a" * 10**6),
        ("dossier", "y" * 10**6),
        ("versions", {str(n): "1" for n in range(6000)}),
        ("duration_s", 1e300),
    ):
        bad = {**plain, "results": [{**plain["results"][0], key: value}]}
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(UsageError, match=rf"results\[0\]\.{key}") as caught:
            read_results(tmp_path / "bad.json")
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content",
    [
        "[" * 10**6,
        '{"schema": 1e999}',
        '{"schema": NaN}',
        "\x00",
        '{"schema": 1, "schema": 2}',
        '{"a":' * 10**5,
    ],
)
def test_malicious_documents_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "trap.json").write_text(content)
    with pytest.raises(UsageError, match=r"trap\.json"):
        read_results(tmp_path / "trap.json")
