"""What a release offers besides Python names: options of `vllm serve`, environment variables,
routes, metrics, parsers, plug-in groups, requirements.

Each reader returns names with a short text: a default, choices, methods, or a range.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from email.parser import BytesHeaderParser

from .definitions import shortened
from .modules import text_of

Trees = Mapping[str, ast.Module]
"""Parsed modules by their paths in the wheel."""
_METRIC = re.compile(r"vllm:[a-z][a-z0-9_]+")
_PLUGIN_GROUP = re.compile(r"vllm\.[a-z_]+(?:plugins|processors)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_METHODS = ("get", "post", "put", "delete", "patch", "head", "api_route", "websocket")
_OPTION_FILES = re.compile(
    r"vllm/engine/arg_utils\.py|vllm/entrypoints/(?:.+/)?cli_args\.py|vllm/entrypoints/cli/serve\.py"
)
_CONFIG_FILES = re.compile(
    r"vllm/config(?:\.py|/.*)|vllm/engine/arg_utils\.py|vllm/entrypoints/.*|vllm/model_executor/.*/quantization/__init__\.py"
)
_PARSER_FILES = re.compile(
    r"vllm/(?:entrypoints/openai/|)(tool_parsers|reasoning|reasoning_parsers)/.*"
)
_PARSER_OF_OPTIONS = "vllm/utils/argparse_utils.py"
_SERVICE_FILES = re.compile(
    rf"{re.escape(_PARSER_OF_OPTIONS)}|{_OPTION_FILES.pattern}|{_CONFIG_FILES.pattern}|{_PARSER_FILES.pattern}|vllm/envs\.py|vllm/plugins/.*|.*metrics.*|.*/stats\.py"
)


def is_needed(path: str) -> bool:
    """Return whether a reader of this module looks at the file."""
    return _SERVICE_FILES.fullmatch(path) is not None


@dataclasses.dataclass(frozen=True)
class Option:
    """An option: its default as source text, and its choices, of which there are none if any value
    is allowed.

    ``boolean``: it has a negative form. That is not part of its text.
    """

    default: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    boolean: bool = False

    def text(self) -> str:
        return json.dumps(
            [self.default, list(self.choices), list(self.aliases)], separators=(",", ":")
        )

    @staticmethod
    def of(text: str) -> Option:
        default, choices, aliases = json.loads(text)
        return Option(default, tuple(choices), tuple(aliases))


def options(trees: Trees) -> dict[str, str]:
    """Return the options of ``vllm serve``."""
    fields = _Fields(trees)
    options: dict[str, Option] = {}
    for path, tree in trees.items():
        if not _OPTION_FILES.fullmatch(path):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                for name in fields.names(node.name):
                    options["--" + name.replace("_", "-")] = fields.option(node.name, name)
        options |= _added_options(tree, fields)
    options |= _inverses(options, trees.get(_PARSER_OF_OPTIONS))
    return {name: option.text() for name, option in sorted(options.items())}


def _inverses(options: Mapping[str, Option], parser: ast.Module | None) -> dict[str, Option]:
    """Return the options that the parser adds to boolean ones:

    ``--disable-x`` for ``--enable-x``, and the other way round.
    """
    prefixes: dict[str, str] = {}
    for node in ast.walk(parser) if parser is not None else ():
        is_table = (
            isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "_inverse_prefixes"
        )
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and is_table:
            prefixes = {
                text_of(k): text_of(v)
                for k, v in zip(node.value.keys, node.value.values, strict=True)
            }
    inverses = {
        inverse + name.removeprefix(prefix): Option()
        for name, option in options.items()
        for prefix, inverse in prefixes.items()
        if option.boolean and name.startswith(prefix)
    }
    return {name: option for name, option in inverses.items() if name not in options}


def _added_options(tree: ast.Module, fields: _Fields) -> dict[str, Option]:
    """Return the options that calls of ``add_argument`` in a module define."""
    sources = {
        target.id: node.value.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "get_kwargs"
        and node.value.args
        and isinstance(node.value.args[0], ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    added = {
        name: Option()
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        for name in _listed_options(node)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            names = [text for argument in call.args if (text := text_of(argument)).startswith("-")]
            long = [name for name in names if name.startswith("--")]
            if long:
                option = _option_of_call(call, sources, fields)
                aliases = (*long[1:], *(name for name in names if name not in long))
                added[long[0]] = dataclasses.replace(option, aliases=aliases)
                added |= dict.fromkeys(long[1:], option)
    return added


def _listed_options(loop: ast.For) -> Iterator[str]:
    """Yield the options that a loop over a written list adds."""
    adds = any(
        getattr(getattr(node, "func", None), "attr", "") == "add_argument"
        for node in ast.walk(loop)
    )
    if adds and isinstance(loop.iter, (ast.List, ast.Tuple)):
        yield from (
            text for node in ast.walk(loop.iter) if (text := text_of(node)).startswith("--")
        )


def _option_of_call(call: ast.Call, sources: Mapping[str, str], fields: _Fields) -> Option:
    default = ""
    choices: tuple[str, ...] = ()
    boolean = False
    for word in call.keywords:
        if word.arg == "default":
            default = fields.default(shortened(word.value))
        elif word.arg == "choices":
            choices = fields.choices(word.value)
        elif word.arg == "action" and text_of(word.value) == "store_true":
            default = "False"
        elif word.arg == "action" and getattr(word.value, "attr", "") == "BooleanOptionalAction":
            boolean = True
        elif (
            word.arg is None
            and isinstance(word.value, ast.Subscript)
            and isinstance(word.value.value, ast.Name)
        ):
            name = sources.get(word.value.value.id, "")
            option = fields.option(name, text_of(word.value.slice))
            default, choices, boolean = option.default, option.choices, option.boolean
    return Option(default, choices, boolean=boolean)


class _Fields:
    """Fields of configuration classes, and names of lists of choices, in all modules of a release."""

    def __init__(self, trees: Trees) -> None:
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, ast.expr] = {}
        for path, tree in trees.items():
            if _CONFIG_FILES.fullmatch(path):
                for node in tree.body:
                    if isinstance(node, ast.ClassDef):
                        self._classes.setdefault(node.name, node)
                    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                        self._values.setdefault(node.targets[0].id, node.value)
                    elif (
                        isinstance(node, ast.AnnAssign)
                        and isinstance(node.target, ast.Name)
                        and node.value
                    ):
                        self._values.setdefault(node.target.id, node.value)

    def _field(self, name: str, field: str, depth: int = 8) -> ast.AnnAssign | None:
        node = self._classes.get(name)
        if node is None or not depth:
            return None
        for statement in node.body:
            if (
                isinstance(statement, ast.AnnAssign)
                and getattr(statement.target, "id", "") == field
            ):
                return statement
        bases = (
            self._field(base.id, field, depth - 1)
            for base in node.bases
            if isinstance(base, ast.Name)
        )
        return next(filter(None, bases), None)

    def names(self, name: str) -> Iterator[str]:
        for statement in self._classes[name].body if name in self._classes else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id

    def option(self, name: str, field: str) -> Option:
        statement = self._field(name, field)
        if statement is None:
            return Option()
        boolean = re.search(r"\bbool\b", ast.unparse(statement.annotation)) is not None
        return Option(
            self.default(shortened(statement.value)),
            self.choices(statement.annotation),
            boolean=boolean,
        )

    def default(self, text: str, depth: int = 4) -> str:
        """Return a default; one that is taken from a field of another class is looked up there."""
        name, _, field = text.partition(".")
        statement = self._field(name, field) if field.isidentifier() else None
        return (
            self.default(shortened(statement.value), depth - 1)
            if statement is not None and depth
            else text
        )

    def choices(self, node: ast.expr, depth: int = 6) -> tuple[str, ...]:
        """Return the values that an annotation or a list of choices allows; none if it allows
        others, too."""
        if not depth:
            return ()
        if isinstance(node, ast.Name) and node.id in self._values:
            return self.choices(self._values[node.id], depth - 1)
        if isinstance(node, (ast.List, ast.Tuple)):
            parts = [str(part.value) for part in node.elts if isinstance(part, ast.Constant)]
            return tuple(parts) if len(parts) == len(node.elts) else ()
        if (
            isinstance(node, ast.Subscript)
            and getattr(node.value, "id", getattr(node.value, "attr", "")) == "Literal"
        ):
            inner = node.slice
            return self.choices(
                inner if isinstance(inner, ast.Tuple) else ast.List([inner]), depth - 1
            )
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Optional":
            return self.choices(node.slice, depth - 1)
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.right, ast.Constant)
            and node.right.value is None
        ):
            return self.choices(node.left, depth - 1)
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") in ("get_args", "list", "sorted")
            and node.args
        ):
            return self.choices(node.args[0], depth - 1)
        return ()


def environment_variables(trees: Trees) -> dict[str, str]:
    """Return the environment variables in ``vllm/envs.py`` with their defaults."""
    variables = {}
    for node in ast.walk(trees.get("vllm/envs.py") or ast.Module([], [])):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name = text_of(key)
                if _VARIABLE.fullmatch(name) and isinstance(
                    value, (ast.Lambda, ast.Call, ast.Name)
                ):
                    variables[name] = _default_of_variable(name, value)
    return variables


def _default_of_variable(name: str, node: ast.expr) -> str:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and call.args and text_of(call.args[0]) == name:
            return shortened(call.args[1]) if len(call.args) > 1 else ""
    return ""


def routes(trees: Trees) -> dict[str, str]:
    """Return the HTTP routes of the servers with their methods."""
    routes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        if path.startswith("vllm/entrypoints/"):
            for call in ast.walk(tree):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.args
                ):
                    route, method = text_of(call.args[0]), call.func.attr
                    router = getattr(call.func.value, "id", "")
                    if route.startswith("/") and (
                        method in ("add_api_route", "mount")
                        or (method in _METHODS and ("router" in router or router == "app"))
                    ):
                        verb = (
                            ""
                            if method in ("add_api_route", "mount", "api_route")
                            else method.upper()
                        )
                        routes.setdefault(route, set()).add(verb)
    return {route: ",".join(sorted(filter(None, verbs))) for route, verbs in sorted(routes.items())}


def metrics(trees: Trees) -> dict[str, str]:
    """Return the names of the metrics.

    One that a server shows only with ``--show-hidden-metrics-for-version`` is no longer among them.
    """
    texts = {
        text_of(node)
        for path, tree in trees.items()
        if "metrics" in path or path.endswith("stats.py")
        for node in _shown(tree)
        if isinstance(node, (ast.Constant, ast.JoinedStr))
    }
    return dict.fromkeys(sorted(filter(_METRIC.fullmatch, texts)), "")


def _shown(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without what runs only if hidden metrics are shown."""
    nodes = deque([tree])
    while nodes:
        node = nodes.popleft()
        if (
            isinstance(node, ast.If)
            and getattr(node.test, "attr", getattr(node.test, "id", "")) == "show_hidden_metrics"
        ):
            nodes.extend(node.orelse)
        else:
            yield node
            nodes.extend(ast.iter_child_nodes(node))


def parsers(trees: Trees) -> dict[str, str]:
    """Return the registered parsers as ``tool:hermes`` and ``reasoning:deepseek_r1`` with their
    classes."""
    registered: dict[str, str] = {}
    for path, tree in trees.items():
        if match := _PARSER_FILES.fullmatch(path):
            kind = "tool" if match[1] == "tool_parsers" else "reasoning"
            for node in ast.walk(tree):
                registered |= {f"{kind}:{name}": owner for name, owner in _registered(node)}
    return dict(sorted(registered.items()))


def _registered(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ClassDef):
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and getattr(decorator.func, "attr", "") == "register_module"
            ):
                values = [
                    *decorator.args,
                    *(word.value for word in decorator.keywords if word.arg == "name"),
                ]
                for value in values:
                    for item in value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]:
                        if text := text_of(item):
                            yield text, node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if getattr(target, "id", "").endswith("_TO_REGISTER"):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                owner = value.elts[-1] if isinstance(value, ast.Tuple) and value.elts else value
                yield text_of(key), text_of(owner)


def plugin_groups(trees: Trees) -> dict[str, str]:
    """Return the groups of entry points that vLLM loads."""
    texts = {
        text_of(node)
        for path, tree in trees.items()
        if path.startswith(("vllm/plugins/", "vllm/v1/sample/logits_processor"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
    }
    return dict.fromkeys(sorted(filter(_PLUGIN_GROUP.fullmatch, texts)), "")


def requirements(metadata: bytes) -> dict[str, str]:
    """Return the required Python and the requirements in a release's metadata, by name."""
    message = BytesHeaderParser().parsebytes(metadata)
    required = {"python": str(message.get("Requires-Python", ""))}
    for line in message.get_all("Requires-Dist", []):
        name = re.match(r"[\w.-]+", line)
        if name and "extra ==" not in line:
            rest = line[name.end() :].strip()
            key = name[0].lower().replace("_", "-")
            required[key] = f"{required[key]} or {rest}" if key in required else rest
    return required
