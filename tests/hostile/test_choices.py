"""A data file chooses neither packages nor an interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.scaffold import Draft
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.environments import names
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.locks import lock_text
from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.fuzz.draft import draft_from_finding
from pytest_vllm_regress.fuzz.finding import Problem
from pytest_vllm_regress.fuzz.schemas.schema_hunter import SchemaFinding
from pytest_vllm_regress.fuzz.schemas.schema_oracle import Outcome, SchemaQuestion
from pytest_vllm_regress.util import codec
from tests.helpers import ROOT
from tests.integration.environments.conftest import Fake, fake

__all__ = ["fake"]

FINDING = SchemaFinding(
    backend="llguidance",
    environment="llguidance-1.7.6",
    versions={"llguidance": "1.7.6"},
    question=SchemaQuestion({"type": "string"}, ('"c"',)),
    problem=Problem(Outcome.REFUSED_VALID, "refuses it", "both ways", '"c"'),
)
REFUSED = [
    "llguidance-1.7.6+evil==6.6.6",
    "vllm-0.8.4+evil==6.6.6",
    "vllm-0.8.4+llguidance==1.7.6",
    "vllm-0.8.999",
    "vllm0.8.999-sim",
    "lm-format-enforcer@HEAD",
    "lm-format-enforcer@..",
    "vllm@/tmp/evil",
    "vllm-0.8.4+lm-format-enforcer@HEAD",
    "/tmp/evil/bin/python",
    "./python",
    "this interpreter",
    "no-such-environment",
    "llguidance-1.7.6 --index-url=http://127.0.0.1",
    "evil-1.0",
]


@pytest.mark.parametrize("name", REFUSED)
def test_a_finding_chooses_no_packages(
    name: str,
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    path = codec.replace(FINDING, environment=name).save(tmp_path)
    assert main(["fuzz", "replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "--env" in error
    assert not fake.noted()


@pytest.mark.parametrize("name", REFUSED)
def test_a_case_from_a_finding_has_no_such_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    draft = draft_from_finding(codec.replace(FINDING, environment=name), Draft())
    assert draft.affected_env == ()
    assert draft_from_finding(FINDING, Draft()).affected_env == ("llguidance-1.7.6",)


def test_a_release_that_a_finding_names_is_installed_from_wheels_with_hashes(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (fake.folder / "released").write_text("2026-01-01")
    digest = "ab" * 32
    (fake.folder / "pylock").write_text(
        '[[packages]]\nname = "llguidance"\nversion = "1.7.6"\n'
        f'wheels = [{{url = "https://x/llguidance-1.7.6-py3-none-any.whl", hashes = {{sha256 = "{digest}"}}}}]\n'
    )
    recipe = names.recipe_named_by_file("llguidance-1.7.6")
    python = EnvironmentCache().ensure(recipe)
    resolutions = fake.calls("compile", "-o")  # of the date of the release, and of the lock
    assert resolutions
    for words in resolutions:
        # Or a build could run to get metadata.
        assert words[words.index("--only-binary") + 1] == ":all:"
    (install,) = fake.calls("install")
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(install)
    assert (fake.folder / "stdin").read_text().split("\n", 1)[
        1
    ] == f"llguidance===1.7.6 \\\n    --hash=sha256:{digest}\n"
    assert EnvironmentCache().built(names.resolve("llguidance-1.7.6")) == python


def test_the_findings_of_this_project_can_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    environments = {
        json.loads(path.read_text())["environment"]
        for path in (ROOT / "docs" / "findings").glob("*.json")
    }
    assert {names.recipe_named_by_file(name).name for name in environments} == environments
    assert names.recipe_named_by_file("vllm0.8.4-sim").name == "vllm-0.8.4"


@pytest.mark.parametrize(
    "digest",
    ['"ab"', '"%s\\n--index-url http://x/"' % ("a" * 64), '"%s\\nevil==6"' % ("a" * 64), "7"],
)
def test_an_index_adds_no_lines_to_a_lock(
    digest: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (fake.folder / "released").write_text("2026-01-01")
    (fake.folder / "pylock").write_text(
        '[[packages]]\nname = "vllm"\nversion = "0.8.4"\n'
        f'wheels = [{{url = "https://x/vllm-0.8.4-py3-none-any.whl", hashes = {{sha256 = {digest}}}}}]\n'
    )
    with pytest.raises(BuildError, match="SHA-256"):
        lock_text(names.resolve("vllm-0.8.4"))
