"""A standalone script (PEP 723) that shows the failure of a case: the case's own test, and only
what that test needs around it.

The test is one that was recorded as REPRODUCED. Fixtures become small classes that call vLLM
directly (``data/``), probes are copied.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ...cases.collection import engine_marker, items, parameters
from ...cases.model import Case
from ...cases.proofs.rejudge import load_observations
from ...cases.results import TestResult
from ...cases.verdict import Verdict
from ...engines.probe import BUILT_IN, TARGET, built_in_sources
from ...engines.spec import EngineSpec, thaw
from ...environments.installed import package
from ...environments.recipes import RELEASE, find_file, load
from ...environments.sources import parse_name
from ...errors import Kind, UsageError
from ...util.text import render_text
from ...util.validation import format_value
from ...util.versions import is_version, version_of

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TEMPLATES: Mapping[str, tuple[str, str]] = {
    "vllm_probe": ("probe", "Probe"),
    "offline": ("engine", "Engine"),
    "async": ("async", "AsyncEngine"),
    "serve": ("server", "Server"),
}
"""The template and class of each fixture or front."""
SUPPORTED = frozenset(
    {"vllm_probe", "vllm_engine", "vllm_server", "vllm_model_path", "vllm_at_work", "vllm_leg"}
)
ENGINES = frozenset({"vllm_engine", "vllm_server"})
KINDS = frozenset({Kind.EXCEPTION, Kind.WRONG_RESULT})
TYPES_ONLY = frozenset({"AtWork", "Probe", "Engine", "AsyncEngine", "Server"})
MODULES = [
    "asyncio",
    "ctypes",
    "importlib",
    "itertools",
    "json",
    "os",
    "pathlib",
    "re",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "traceback",
    "types",
    "urllib.error",
    "urllib.request",
]
"""Modules of the standard library that the templates use."""


@dataclass(frozen=True)
class StandaloneScript:
    """A standalone script. ``test``: the test that it repeats.

    ``result``: the recorded result of that test.
    """

    text: str
    test: str
    result: TestResult


class NotExportable(UsageError):
    """A case, or one of its tests, needs the harness."""


def export_script(case: Case) -> StandaloneScript:
    """Return a script for the first test of the case that was recorded as REPRODUCED and can stand
    alone.

    Which cases become a standalone script? Those with such a test that uses nothing but the
    fixtures of ``data/``; the others say why not.

    Raises ``NotExportable`` that says why no test can.
    """
    if not KINDS & set(case.symptom.kinds):
        raise NotExportable(
            f"{case.id}: a script cannot show this ({case.symptom.kind}), which needs deadlines and processes that are watched from outside. "
            f"`vllm-regress run {case.id}` shows it"
        )
    shown = [
        result
        for run in load_observations(case)
        for result in run.results
        if result.verdict is Verdict.REPRODUCED
        and result.observation
        and result.observation.kind in KINDS
    ]
    if not shown:
        raise NotExportable(
            f"{case.id}: observations.json has no test that showed the failure: run `vllm-regress validate` first"
        )
    tests = {item.name: item for item in items(case)}
    reasons: dict[str, None] = {}
    # Prefer a test on text alone, and the latest release that has the failure.
    shown.sort(key=lambda result: result.test)
    shown.sort(key=lambda result: ("vision" not in result.test, _release(result)), reverse=True)
    for result in shown:
        name = result.test.partition("::")[2]
        try:
            if name not in tests:
                raise NotExportable(f"there is no test {name}")
            return StandaloneScript(_script(case, tests[name], result), name, result)
        except NotExportable as error:
            reasons[str(error)] = None
    raise NotExportable(f"{case.id}: no script: {'; '.join(reasons)}")


def _release(result: TestResult) -> Version:
    return version_of(result.versions.get("vllm", "0")) or Version("0")


def _script(case: Case, item: pytest.Function, result: TestResult) -> str:
    module = ModuleOfTests(item.path.read_text(encoding="utf-8"))
    function, known, marker = item.originalname, item._fixtureinfo, engine_marker(item)
    values = parameters(item)
    spec = EngineSpec.create(**marker.fixed, **values.pop("engine_spec", {}))
    values.pop("vllm_env", None)
    autouse = [name for name in known.names_closure if name in module.fixtures()]
    used = module.slice([*autouse, function])
    arguments = (*known.argnames, *(name for f in autouse for name in used.fixtures[f]))
    fixtures = {name for name in arguments if name.startswith("vllm_")}
    obstacles = list(_obstacles(module, used, autouse, fixtures))
    if case.symptom.all:
        obstacles.insert(0, "is about several texts, and a script searches one")
    if module.is_decorated_by(function, "given"):
        obstacles.insert(0, "draws its values with Hypothesis")
    if ENGINES & fixtures:
        obstacles += _obstacles_of_engine(spec, marker.front, used)
    if obstacles:
        raise NotExportable(f"{function} {obstacles[0]}")
    parts, contexts = [], []
    if "vllm_probe" in fixtures:
        contexts.append("Probe() as vllm_probe")
    if engines := sorted(ENGINES & fixtures):
        template, class_name = TEMPLATES[marker.front]
        contexts.append(f"{class_name}() as {engines[0]}")
        parts += _engine_constants(spec, marker.front)
        parts += [] if marker.front == "serve" else [_template("results")]
        parts.append(_template(template))
    if "vllm_probe" in fixtures:
        parts += [_files(case, used), _template("probe")]
    body = render_text(
        "script_body.py.txt",
        model=DEFAULT_MODEL,
        pattern=repr(case.symptom.pattern),
        parts=[*parts, used.text],
        test=item.name,
        function=function,
        arguments=known.argnames,
        fixtures=fixtures,
        calls={name: used.fixtures[name] for name in autouse},
        values={name: _literal(name, value) for name, value in values.items()},
        contexts=contexts,
        main=_template("main"),
    )
    standard = [name for name in MODULES if re.search(rf"(?<![.\w]){re.escape(name)}\.", body)]
    return render_text(
        "script.py.txt",
        pins=[
            *(_pin(name, version) for name, version in sorted(result.versions.items())),
            *(n for n in ("httpx", "jsonschema", "pytest") if f"import {n}" in used.imports),
        ],
        settings=_uv_settings(result.environment),
        case=case,
        imports=sorted({*(f"import {name}" for name in standard), *used.imports}),
        body=body.rstrip("\n"),
    )


def _pin(name: str, version: str) -> str:
    """Return the requirement of a recorded package. A result file may have any text in their place,
    for example an address."""
    public = version.partition("+")[0]
    if package(name, public) is None or not is_version(public):
        raise NotExportable(
            f"ran with {format_value(f'{name} {version}')}, which is no version of a package"
        )
    return f"{name}=={public}"


def _obstacles(
    module: ModuleOfTests, used: SourceSlice, autouse: Sequence[str], fixtures: set[str]
) -> Iterator[str]:
    """Yield what of a test only the harness can do."""
    if unknown := sorted(used.own - TYPES_ONLY):
        yield f"uses {', '.join(unknown)} of this project"
    if unknown := sorted(fixtures - SUPPORTED):
        yield f"uses {', '.join(unknown)}"
    if generators := [name for name in autouse if module.is_generator(name)]:
        yield f"has the fixture {generators[0]}, which yields"


def _obstacles_of_engine(spec: EngineSpec, front: str, used: SourceSlice) -> Iterator[str]:
    """Yield what of a test's engine only the harness can do."""
    if spec.model != "text" or spec.task != "generate":
        yield f"needs a model for {spec.model if spec.model != 'text' else spec.task}"
    renamed = ("tokenizer_pool_size", "structured_output_backend", "import_path", "draft")
    if any(getattr(spec, name) != getattr(EngineSpec(), name) for name in renamed):
        yield "sets engine arguments that have other names in other releases"
    if spec.executor in ("ray", "ray-2-nodes"):
        yield "needs Ray"
    template, class_name = TEMPLATES[front]
    offered = ModuleOfTests(_template(template)).members_of(class_name)
    for name in ("vllm_engine", "vllm_server", "engine", "server"):
        reads = used.attributes.get(name, frozenset())
        if unknown := sorted(reads - offered - {"spec", "model", "root_url"}):
            yield f"uses {class_name}.{unknown[0]}"


def _literal(name: str, value: Any) -> str:
    try:
        if ast.literal_eval(repr(value)) == value:
            return pprint.pformat(value, width=110, sort_dicts=False)
    except (ValueError, SyntaxError):
        pass
    raise NotExportable(f"the value of {name} is no literal")


def _uv_settings(environment: str) -> list[str]:
    """Return uv's settings with which the requirements resolve as they did for the recorded
    environment: old releases break with new packages."""
    if parse_name(environment) is not None:
        return []
    try:
        recipe = load(find_file()).resolve(environment)
    except UsageError:
        return []
    lines = []
    if recipe.exclude_newer not in (None, RELEASE):
        lines.append(f"exclude-newer = {json.dumps(recipe.exclude_newer)}")
    if days := [(package, day) for package, day in recipe.exclude_newer_package if day != RELEASE]:
        lines.append(
            f"exclude-newer-package = {{ {', '.join(f'{name} = {json.dumps(day)}' for name, day in days)} }}"
        )
    if recipe.overrides:
        lines.append(f"override-dependencies = {json.dumps(recipe.overrides)}")
    return lines


def _engine_constants(spec: EngineSpec, front: str) -> list[str]:
    arguments: dict[str, Any] = {
        "max_model_len": spec.max_model_len,
        "seed": spec.seed,
        "enforce_eager": True,
    }
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(spec, name) > 1:
            arguments[name] = getattr(spec, name)
    if spec.dtype:
        arguments["dtype"] = spec.dtype
    if spec.executor != "auto":
        arguments["distributed_executor_backend"] = spec.executor
    arguments |= thaw(spec.extra)
    variables = dict(spec.env)
    if spec.generation != "auto":
        variables["VLLM_USE_V1"] = "1" if spec.generation == "V1" else "0"
    parts = [f"os.environ.update({variables!r})"] if variables else []
    if front == "serve":
        return [*parts, f"SERVE_ARGUMENTS = {_flags(arguments | thaw(spec.server_options))!r}"]
    return [*parts, f"ENGINE_ARGUMENTS = {arguments!r}"]


def _flags(options: Mapping[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif isinstance(value, list):
            flags += [flag, *map(str, value)]
        elif value is not None and value is not False:
            flags += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _files(case: Case, used: SourceSlice) -> str:
    """Return the probe modules that the test names, as a dictionary of file names and texts."""
    files: dict[str, Path] = {}
    for module in BUILT_IN:
        if re.search(rf"[\"']{module}:", used.text):
            for file in built_in_sources(module):
                files[f"reproduction/{file.relative_to(TARGET).as_posix()}"] = file
    if files:
        files = {"reproduction/__init__.py": TARGET / "__init__.py", **files}
    if (own := case.directory / "probe.py").exists():
        files["probe.py"] = own
    entries = "".join(
        f"    {name!r}: {_text_literal(file.read_text(encoding='utf-8'))},\n"
        for name, file in files.items()
    )
    return f"FILES = {{\n{entries}}}\n" + '"""Functions that the test calls, by file."""'


def _text_literal(text: str) -> str:
    if "'''" in text or text.endswith("'"):
        return repr(text)
    return "r'''" + text + "'''"


def _template(name: str) -> str:
    return (Path(__file__).parent / "data" / f"{name}.py.txt").read_text(encoding="utf-8")


OWN_PACKAGE = "pytest_vllm_regress"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceSlice:
    """``imports`` and ``text``: source of the imports and definitions. ``own``: names that come
    from this project. ``attributes``: what is read of each name, for example ``{"vllm_server":
    {"post"}}``. ``fixtures``: parameters of each function that is a fixture of the module.
    """

    imports: tuple[str, ...]
    text: str
    own: frozenset[str]
    attributes: dict[str, frozenset[str]]
    fixtures: dict[str, tuple[str, ...]]


class ModuleOfTests:
    """A parsed test module."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes: dict[str, ast.stmt] = {}
        self._imports: dict[str, str] = {}
        self._own: set[str] = set()
        for node in ast.parse(source).body:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                if isinstance(node, ast.ImportFrom) and (
                    node.level or (node.module or "").startswith(OWN_PACKAGE)
                ):
                    self._own.add(name)
                elif not isinstance(node, ast.ImportFrom):
                    self._imports[name] = ast.unparse(ast.Import([alias]))
                elif node.module != "__future__":
                    self._imports[name] = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._nodes[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._nodes.update(
                    {name.id: node for name in ast.walk(target) if isinstance(name, ast.Name)}
                )

    def fixtures(self) -> dict[str, tuple[str, ...]]:
        """Return the parameters of each fixture that the module defines."""
        return {
            name: tuple(argument.arg for argument in node.args.args)
            for name, node in self._nodes.items()
            if isinstance(node, ast.FunctionDef) and self.is_decorated_by(name, "fixture")
        }

    def is_generator(self, name: str) -> bool:
        """Whether a function yields."""
        return any(
            isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(self._nodes[name])
        )

    def is_decorated_by(self, name: str, word: str) -> bool:
        """Whether a decorator of the function has this word in its source."""
        decorators = getattr(self._nodes[name], "decorator_list", ())
        return any(word in ast.unparse(decorator) for decorator in decorators)

    def members_of(self, name: str) -> set[str]:
        """Return the methods of a class."""
        return {
            node.name
            for node in getattr(self._nodes[name], "body", ())
            if isinstance(node, Definition)
        }

    def slice(self, functions: Iterable[str]) -> SourceSlice:
        """Return what these functions need."""
        needed: dict[str, ast.stmt] = {}
        waiting, used = list(functions), set[str]()
        while waiting:
            name = waiting.pop()
            if name in needed or name not in self._nodes:
                continue
            needed[name] = self._nodes[name]
            names = set(_names(self._nodes[name]))
            used |= names
            waiting += sorted(names)
        statements = sorted(
            {id(node): node for node in needed.values()}.values(), key=lambda node: node.lineno
        )
        lines, fixtures = self._source.splitlines(), self.fixtures()
        return SourceSlice(
            imports=tuple(sorted({self._imports[name] for name in used & self._imports.keys()})),
            text="\n\n\n".join(
                "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in statements
            ),
            own=frozenset(used & self._own),
            attributes=_attributes(statements),
            fixtures={name: fixtures[name] for name in needed if name in fixtures},
        )


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read when the statement runs: not those of its annotations and
    decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Name):
                yield child.id
            elif isinstance(child, ast.AST):
                yield from _names(child)


def _attributes(statements: Iterable[ast.stmt]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.setdefault(node.value.id, set()).add(node.attr)
    return {name: frozenset(attributes) for name, attributes in found.items()}
