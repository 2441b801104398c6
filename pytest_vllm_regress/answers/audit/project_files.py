"""Requirements in files that are no lists of packages: pyproject.toml, conda's environment.yml, the
output of vLLM's ``collect_env``, SBOMs as text, and files that install vLLM or name its image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...util.documents import parse_toml
from ...util.versions import requirement_of, version_of
from ..deployments.reader import Pin, is_dockerfile, read

_COLLECTED = re.compile(r"(?m)^(?:Collecting environment information|vLLM Version\s*:)")
_CONDA = re.compile(r"(?m)^dependencies:[ \t]*\n\s*-")
_CONDA_LINE = re.compile(
    r"^\s*-\s+[\"']?([A-Za-z0-9][\w.-]*(?:\[[\w,]*\])?)\s*((?:[=<>!~]=?|===)[^\"'#]*)?[\"']?\s*(?:#.*)?$"
)
_SPDX = re.compile(r"(?m)^PackageName:[ \t]*(\S+)[^\0]*?^PackageVersion:[ \t]*(\S+)")
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


def requirements_in(text: str, name: str) -> str:
    """Return a text with a requirement on each line where the file names a package; empty if it is
    another kind of file."""
    base = name.rpartition("/")[2]
    if base == "pyproject.toml":
        return _lines(text, list(_of_project(parse_toml(text))))
    if _COLLECTED.search(text) and not base.endswith(_NAMES):
        return "\n".join(map(_collected, text.splitlines()))
    if base.endswith((".yaml", ".yml")) and _CONDA.search(text):
        return "\n".join(map(_of_conda, text.splitlines()))
    if _SPDX.search(text) and "SPDXVersion" in text:
        return _placed(text, ((m.start(1), f"{m[1]}=={m[2]}") for m in _SPDX.finditer(text)))
    if text.lstrip().startswith("<") and "cyclonedx" in text[:2000].lower():
        return _placed(text, ((m.start(1), f"{m[1]}=={m[2]}") for m in _CYCLONEDX.finditer(text)))
    if is_dockerfile(name) or base.endswith(_NAMES):
        return _of_deployment(text, name)
    return ""


def _placed(text: str, found: Iterable[tuple[int, str]]) -> str:
    """Return lines that have the requirements where they stand; several of a line one after the
    other from there on."""
    lines: list[str] = []
    for at, requirement in found:
        lines += [""] * (text.count("\n", 0, at) - len(lines))
        lines.append(requirement)
    return "\n".join(lines)


def _lines(text: str, requirements: list[str]) -> str:
    return _placed(text, sorted((max(text.find(r.split(" ")[0]), 0), r) for r in requirements))


def _of_project(document: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of a project: also optional ones, groups, and Poetry's and pixi's."""
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
    pixi = _table(tool.get("pixi")).get("pypi-dependencies")
    tables = [poetry.get("dependencies"), pixi, *(_table(g).get("dependencies") for g in groups)]
    for entries in map(_table, tables):
        for name, value in entries.items():
            version = value.get("version", "*") if isinstance(value, dict) else value
            if name != "python" and isinstance(version, str):
                yield f"{name}{_poetry(version)}"


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


def _of_deployment(text: str, name: str) -> str:
    """Return the versions that a file installs, and that of vLLM's image."""
    found = {(pin.line, f"vllm{pin.specifier}") for pin in read(text, name) if isinstance(pin, Pin)}
    for number, line in enumerate(text.splitlines(), 1):
        pins = _INSTALLED.findall(line) if "#" not in line else ()
        found |= {(number, f"{package}{pin}") for package, pin in pins if _is_pin(package, pin)}
    requirements = sorted(found)
    lines: list[str] = []
    for number, requirement in requirements:
        lines += [""] * (number - 1 - len(lines))
        lines.append(requirement)
    return "\n".join(lines)


def _is_pin(package: str, pin: str) -> bool:
    return package != "vllm" and requirement_of(f"{package}{pin}") is not None
