"""What configuration the tests of a case need: the arguments of ``vllm_engine`` and the parsers
that they call. Their source is read, not run."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ...cases.model import Case
from ...engines.spec import SHORT
from ...errors import UsageError
from ...util.files import read_bounded

MAX_BYTES = 1024 * 1024
PARSER_PROBES = MappingProxyType(
    {"parsers:tool_calls": "tool_call_parser", "parsers:reasoning": "reasoning_parser"}
)
"""The option of ``vllm serve`` that selects the parser which a built-in probe calls."""
_OWN = ("fresh", "timeout", "front")


@dataclasses.dataclass(frozen=True)
class TestNeeds:
    """What one test needs.

    ``engine``: allowed values by field. ``front``: empty for a probe. ``parsers``: allowed names by
    option. ``probes``: built-in probes that it
    calls. ``variant``: the form of the failure that it shows, None for the failure itself;
    ``computed``: what the test computes at run time, so that its source does not tell; empty if it
    tells everything.
    """

    __test__ = False  # not a pytest class

    front: str
    engine: Mapping[str, tuple[Any, ...]] = dataclasses.field(hash=False)
    parsers: Mapping[str, tuple[str, ...]] = dataclasses.field(hash=False)
    probes: tuple[str, ...] = ()
    variant: str | None = None
    computed: str = ""


def needs_of(case: Case) -> tuple[TestNeeds, ...]:
    """Return the needs of the case's tests; none for a test file that cannot be read."""
    needs: list[TestNeeds] = []
    for path in sorted(case.directory.glob("test_*.py")):
        try:
            tree = ast.parse(read_bounded(path, MAX_BYTES))
        except (UsageError, SyntaxError, ValueError):
            continue
        needs += _Module(tree).needs()
    return tuple(needs)


class _Module:
    """The source of a test file, with the values of its constants."""

    def __init__(self, tree: ast.Module) -> None:
        self._constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._marks_parameters = any(
            isinstance(node, ast.Attribute) and node.attr == "vllm_case" for node in ast.walk(tree)
        )
        """Whether a test without a mark of its own may get one from ``pytest.param``."""
        self._functions = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)
        }

    def needs(self) -> Iterator[TestNeeds]:
        shared = self._marks(self._constants.get("pytestmark"))
        for name, function in self._functions.items():
            marks = [
                *(mark for node in function.decorator_list for mark in self._marks(node)),
                *shared,
            ]
            of_case = next(
                (mark for mark in marks if _name(mark) == "vllm_case"), None
            )  # the nearest one counts
            if name.startswith("test_") and (of_case is not None or self._marks_parameters):
                values = (
                    [keyword.value for keyword in of_case.keywords if keyword.arg == "variant"]
                    if of_case
                    else []
                )
                variant = next(map(self._value, values), None)
                yield dataclasses.replace(
                    self._of_test(function, marks),
                    variant=variant,
                    computed=self._computed(of_case in shared, marks),
                )

    def _marks(self, node: ast.expr | None) -> list[ast.Call]:
        if isinstance(node, ast.Name):
            return self._marks(self._constants.get(node.id))
        if isinstance(node, (ast.List, ast.Tuple)):
            return [mark for element in node.elts for mark in self._marks(element)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            maker = self._constants.get(node.func.id)
            return (
                [ast.Call(maker, node.args, node.keywords)]
                if isinstance(maker, ast.Attribute)
                else []
            )
        return [node] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []

    def _computed(self, is_shared: bool, marks: Iterable[ast.Call]) -> str:
        """Return what the test computes at run time: its parameters and therefore its marks, or the
        engine's configuration."""
        values = (
            mark.args[1] for mark in marks if _name(mark) == "parametrize" and len(mark.args) > 1
        )
        if is_shared and any(
            isinstance(value, ast.Call) and isinstance(value.func, ast.Name) for value in values
        ):
            return "which form of the failure it shows"
        fixture = self._functions.get("engine_spec")
        return (
            "its configuration"
            if fixture is not None and any(map(_is_feature, _settings(fixture)))
            else ""
        )

    def _of_test(self, function: ast.FunctionDef, marks: list[ast.Call]) -> TestNeeds:
        arguments: dict[str, Any] = {}
        for mark in reversed([mark for mark in marks if _name(mark) == "vllm_engine"]):
            arguments |= {
                keyword.arg: self._value(keyword.value) for keyword in mark.keywords if keyword.arg
            }
        has_engine = any(
            argument.arg in ("vllm_engine", "vllm_server") for argument in function.args.args
        )
        front = str(arguments.get("front", "offline")) if has_engine else ""
        if (
            "import_path" in arguments
        ):  # the case's own classes, which only make the failure show sooner
            arguments |= {name: _without_classes(value) for name, value in arguments.items()}
        engine = {
            SHORT.get(name, name): tuple(value) if isinstance(value, list) else (value,)
            for name, value in arguments.items()
            if name not in _OWN
        }
        bodies = [
            function,
            *(self._functions[name] for name in _called(function) if name in self._functions),
        ]
        probes = tuple(
            sorted(
                {
                    text
                    for body in bodies
                    for text in _texts(body)
                    if ":" in text and text.isprintable()
                }
            )
        )
        names = tuple(sorted({name for body in bodies for name in self._parser_names(body, marks)}))
        parsers = {option: names for probe, option in PARSER_PROBES.items() if probe in probes}
        return TestNeeds(front, engine, parsers, probes)

    def _parser_names(self, function: ast.FunctionDef, marks: list[ast.Call]) -> Iterator[str]:
        """Yield the names of parsers: values of ``parser`` as a key, as an argument, or as a
        parameter of the test."""
        values: list[ast.expr | None] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                values += [
                    value
                    for key, value in pairs
                    if isinstance(key, ast.Constant) and key.value == "parser"
                ]
            elif isinstance(node, ast.Call):
                values += [keyword.value for keyword in node.keywords if keyword.arg == "parser"]
                values += self._positional(node)
        yield from (
            value.value
            for value in values
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        )
        for mark in marks:
            if _name(mark) == "parametrize" and len(mark.args) > 1:
                yield from _column(self._value(mark.args[0]), self._value(mark.args[1]), "parser")

    def _positional(self, call: ast.Call) -> list[ast.expr | None]:
        called = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        parameters = [argument.arg for argument in called.args.args] if called else []
        return [
            value
            for parameter, value in zip(parameters, call.args, strict=False)
            if parameter == "parser"
        ]

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return the value of a literal or of a constant of the module; None for anything else."""
        if isinstance(node, ast.Name) and depth < 5:
            constant = self._constants.get(node.id)
            return None if constant is None else self._value(constant, depth + 1)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(element, depth) for element in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {
                key.value: self._value(value, depth)
                for key, value in pairs
                if isinstance(key, ast.Constant)
            }
        return node.value if isinstance(node, ast.Constant) else None


def _without_classes(values: Any) -> Any:
    """Return options without those that name a class by its path, and any other value unchanged."""
    if not isinstance(values, dict):
        return values
    return {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and "." in value)
    }


def _settings(fixture: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield the values that an ``engine_spec`` fixture sets in dictionaries and keyword arguments."""
    for node in ast.walk(fixture):
        if isinstance(node, ast.Dict):
            yield from node.values
        elif isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords)


def _is_feature(value: ast.expr) -> bool:
    """Return whether a setting configures a feature.

    A number only makes the failure show sooner.
    """
    is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float)
    return not is_number and not isinstance(value, ast.Dict)


def _name(mark: ast.Call) -> str:
    return mark.func.attr if isinstance(mark.func, ast.Attribute) else ""


def _called(function: ast.FunctionDef) -> list[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return list(dict.fromkeys(call.id for call in calls if isinstance(call, ast.Name)))


def _texts(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def _column(names: Any, rows: Any, argument: str) -> Iterator[str]:
    """Yield the texts that ``parametrize`` gives this argument.

    A dictionary stands for its keys.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if (
        not isinstance(columns, list)
        or argument not in columns
        or not isinstance(rows, (list, dict))
    ):
        return
    for row in rows:
        value = (
            row[columns.index(argument)]
            if len(columns) > 1 and isinstance(row, list) and len(row) == len(columns)
            else row
        )
        if isinstance(value, str):
            yield value
