"""Requirements in files that are no lists of packages: pyproject.toml, conda's environment.yml, the
output of vLLM's ``collect_env``, SBOMs as text, and files that install vLLM or name its image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ...util.documents import parse_toml
from ...util.versions import requirement_of, version_of
from ..deployments.file_names import is_dockerfile

_COLLECTED = re.compile(r"(?m)^(?:Collecting environment information|vLLM Version\s*:)")
_CONDA = re.compile(r"(?m)^dependencies:[ \t]*\n\s*-")
_CONDA_LINE = re.compile(
    r"^\s*-\s+[\"']?(?:[\w-]+::)?([A-Za-z0-9][\w.-]*(?:\[[\w,]*\])?)\s*((?:[=<>!~]=?|===)[^\"'#]*)?[\"']?\s*(?:#.*)?$"
)
_SPDX = re.compile(
    r"(?m)^PackageName:[ \t]*(\S+)\n(?:(?!PackageName:).*\n){0,50}?PackageVersion:[ \t]*(\S+)"
)
_CYCLONEDX = re.compile(r"<name>([\w.-]{1,100})</name>\s*<version>([\w.+!-]{1,100})</version>")
_INSTALLED = re.compile(
    r"(?<![\w./-])([A-Za-z][\w.-]{0,99})(?:\[[\w,-]{0,100}\])?(==[\w.+!]{1,50})(?![\w.])"
)
_NAMES = (
    ".yaml",
    ".yml",
    ".sh",
    ".bash",
    ".service",
    ".py",
    ".ipynb",
    ".slurm",
    ".sbatch",
    ".conf",
)


Requirements = list[tuple[int, str]]
"""Requirements with their lines."""


def requirements_in(text: str, name: str) -> Requirements | None:
    """Return the requirements that a file names; None if it is another kind of file."""
    base = name.rpartition("/")[2]
    if base in ("pyproject.toml", "Pipfile", "pixi.toml"):
        found = ((_place(text, entry), entry) for entry in _of_project(parse_toml(text)))
        return sorted(found)
    if _COLLECTED.search(text) and not base.endswith(_NAMES):
        return _by_line(text, _collected)
    if base.endswith((".yaml", ".yml")) and _CONDA.search(text):
        return _by_line(text, _of_conda)
    if _SPDX.search(text) and "SPDXVersion" in text:
        return _matches(text, _SPDX)
    if text.lstrip().startswith("<") and "cyclonedx" in text[:2000].lower():
        return _matches(text, _CYCLONEDX)
    if is_dockerfile(name) or base.endswith(_NAMES):
        return _of_deployment(text, name)
    return None


def _place(text: str, requirement: str) -> int:
    """Return the line on which a requirement is; in Poetry's tables only its name is."""
    at = text.find(f'"{requirement}"')
    if at < 0:
        name = re.split(r"[\s\[=<>!~;]", requirement)[0]
        match = re.search(rf"(?m)^{re.escape(name)}\b|['\"]{re.escape(name)}\b", text)
        at = match.start() if match else 0
    return text.count("\n", 0, at) + 1


def _by_line(text: str, read_line: Callable[[str], str]) -> Requirements:
    lines = enumerate(map(read_line, text.splitlines()), 1)
    return [(number, requirement) for number, requirement in lines if requirement]


def _matches(text: str, pattern: re.Pattern[str]) -> Requirements:
    found: Requirements = []
    line, at = 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", at, match.start(1))
        at = match.start(1)
        found.append((line, f"{match[1]}=={match[2]}"))
    return found


def _of_project(document: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of a project: also optional ones, groups, and Poetry's, pixi's and
    Pipenv's."""
    tool = _table(document.get("tool"))
    project = _table(document.get("project"))
    lists = [project.get("dependencies"), *_table(project.get("optional-dependencies")).values()]
    lists += _table(document.get("dependency-groups")).values()
    lists += [
        _table(tool.get("uv")).get(key) for key in ("dev-dependencies", "constraint-dependencies")
    ]
    for entries in lists:
        yield from (entry for entry in entries or () if isinstance(entry, str))
    poetry = _table(tool.get("poetry"))
    groups = _table(poetry.get("group")).values()
    pixi = _table(tool.get("pixi"))
    tables = [poetry.get("dependencies"), *(_table(g).get("dependencies") for g in groups)]
    tables += [pixi.get(key) for key in _PIXI]
    tables += [document.get(key) for key in (*_PIXI, "packages", "dev-packages")]
    for entries in map(_table, tables):
        for name, value in entries.items():
            version = value.get("version", "*") if isinstance(value, dict) else value
            if name != "python" and isinstance(version, str):
                yield f"{name}{_poetry(version)}"


_PIXI = ("dependencies", "pypi-dependencies")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _poetry(text: str) -> str:
    """Return Poetry's version as specifiers: ``^0.8`` is ``>=0.8,<0.9``, ``0.8.5`` is exact."""
    text = text.strip()
    caret = version_of(text[1:]) if text.startswith("^") else None
    if caret is not None:
        parts = [*caret.release, 0, 0]
        upper = f"{parts[0] + 1}" if parts[0] else f"0.{parts[1] + 1}"
        return f">={text[1:].strip()},<{upper}"
    if version_of(text) is not None:
        return f"=={text}"
    return "" if text == "*" else text.replace("~", "~=") if re.match(r"~\d", text) else text


def _collected(line: str) -> str:
    """Return the requirement in a line of ``collect_env``'s output."""
    if match := re.match(r"\[(?:pip3?|uv)\]\s+(\S+==\S+)", line):
        return match[1]
    if match := re.match(r"\[conda\]\s+(\S+)\s+(\S+)", line):
        return f"{match[1]}=={match[2]}" if version_of(match[2]) else ""
    if match := re.match(r"vLLM Version\s*:\s*(\S+)", line):
        return f"vllm=={match[1]}" if version_of(match[1]) else ""
    return ""


def _of_conda(line: str) -> str:
    """Return the requirement in a line of environment.yml: conda's ``name=1.2=build`` or pip's."""
    match = _CONDA_LINE.match(line)
    if not match or match[1] in ("python", "pip"):
        return ""
    name, specifier = match[1], (match[2] or "").strip()
    exact = re.fullmatch(r"=([^=<>!~\s]+)(?:=\S*)?", specifier)
    if exact:
        specifier = f"=={exact[1]}" if version_of(exact[1]) else ""
    return f"{name}{specifier}"


def _of_deployment(text: str, name: str) -> Requirements:
    """Return the versions that a file installs, and that of vLLM's image."""
    from ..deployments.reader import Pin, read

    named = (pin for pin in read(text, name) if isinstance(pin, Pin) and pin.specifier)
    found = {(pin.line, f"vllm{pin.specifier}") for pin in named}
    for number, line in enumerate(text.splitlines(), 1):
        pins = _INSTALLED.findall(line) if "#" not in line else ()
        found |= {(number, f"{package}{pin}") for package, pin in pins if _is_pin(package, pin)}
    return sorted(found)


def _is_pin(package: str, pin: str) -> bool:
    return package != "vllm" and requirement_of(f"{package}{pin}") is not None
