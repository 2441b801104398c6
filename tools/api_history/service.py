"""What a release offers besides Python names: options of `vllm serve`, environment variables,
routes, metrics, parsers, plug-in groups, requirements.

Each reader returns names with a short text: a default, choices, methods, or a range.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from email.parser import BytesHeaderParser

from pytest_vllm_regress.answers.api_history.definitions import Option, last_name, text_of

from .modules import items_of, shortened, targets_of

Trees = Mapping[str, ast.Module]
"""Parsed modules by their paths in the wheel."""
_METRIC = re.compile(r"vllm:[a-z][a-z0-9_]+")
_PLUGIN_GROUP = re.compile(r"vllm\.[a-z_]+(?:plugins|processors)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_ADDED = ("add_api_route", "mount")
_METHODS = ("get", "post", "put", "delete", "patch", "head", "api_route", "websocket")
_PARSER_OF_OPTIONS = "vllm/utils/argparse_utils.py"
_OPTION_FILES = r"vllm/engine/arg_utils\.py|vllm/entrypoints/(?:.+/)?cli_args\.py|vllm/entrypoints/cli/serve\.py"
_CONFIG_FILES = r"vllm/config(?:\.py|/.*)|vllm/engine/arg_utils\.py|vllm/entrypoints/.*|vllm/model_executor/.*/quantization/__init__\.py"
_PARSER_FILES = r"vllm/(?:entrypoints/openai/|)(tool_parsers|reasoning|reasoning_parsers)/.*"
_MODEL_FILES = r"vllm/model_executor/models/registry\.py"
_NOT_SUPPORTED = re.compile(r".*(?:PREVIOUSLY|OOT|BACKEND).*")
_HAS_METRIC = re.compile(rb"""["']vllm:[a-z]""")
"""A module that may define a metric: connectors and managers of caches have their own."""
_PLUGIN_FILES = r"vllm/plugins/.*"
_SERVICE_FILES = "|".join(
    (
        *(_OPTION_FILES, _CONFIG_FILES, _PARSER_FILES, _PLUGIN_FILES, _MODEL_FILES),
        *(re.escape(_PARSER_OF_OPTIONS), r"vllm/envs\.py"),
    )
)


def is_needed(path: str, content: bytes) -> bool:
    """Return whether a reader of this module looks at the file."""
    is_named = re.fullmatch(_SERVICE_FILES, path) or _HAS_METRIC.search(content)
    return bool(is_named) or reads_variables(content)


def reads_variables(content: bytes) -> bool:
    """Return whether a module may read a variable itself, without ``vllm/envs.py``."""
    return b"VLLM_" in content and (b"getenv" in content or b"environ" in content)


def tables(trees: Trees) -> dict[str, dict[str, str]]:
    """Return the sections that only sources say."""
    return {
        "options": options(trees),
        "environment": variables_elsewhere(trees) | environment_variables(trees),
        "routes": routes(trees),
        "metrics": metrics(trees),
        "parsers": parsers(trees),
        "plugins": plugin_groups(trees),
        "architectures": architectures(trees),
    }


def options(trees: Trees) -> dict[str, str]:
    """Return the options of ``vllm serve``."""
    fields = _Fields(trees)
    options: dict[str, Option] = {}
    for path, tree in trees.items():
        if re.fullmatch(_OPTION_FILES, path):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                    for name in fields.own(node.name):
                        options["--" + name.replace("_", "-")] = fields.option(node.name, name)
            options |= _added_options(tree, fields)
    options = _inverses(options, trees.get(_PARSER_OF_OPTIONS)) | options
    return {name: option.text() for name, option in sorted(options.items())}


def _inverses(options: Mapping[str, Option], parser: ast.Module | None) -> dict[str, Option]:
    """Return the options that the parser adds to boolean ones:

    ``--disable-x`` for ``--enable-x``, and the other way round.
    """
    prefixes = [
        (text_of(prefix), text_of(inverse))
        for node in (ast.walk(parser) if parser is not None else ())
        if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "_inverse_prefixes"
        for prefix, inverse in items_of(node.value)
    ]
    return {
        inverse + name.removeprefix(prefix): Option()
        for name, option in options.items()
        for prefix, inverse in prefixes
        if option.boolean and name.startswith(prefix)
    }


def _calls(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or a method with that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == function:
            yield node


def _added_options(tree: ast.Module, fields: _Fields) -> dict[str, Option]:
    """Return the options that calls of ``add_argument`` in a module define."""
    sources: dict[str, str] = {}
    added: dict[str, Option] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="get_kwargs"), args=[owner, *_])):
                sources |= {last_name(target): last_name(owner) for target in node.targets}
            # A loop over options that are written out.
            case ast.For(iter=ast.List() | ast.Tuple()) if any(_calls(node, "add_argument")):
                texts = map(text_of, ast.walk(node.iter))
                added |= {text: Option() for text in texts if text.startswith("--")}
    for call in _calls(tree, "add_argument"):
        names = [text for text in map(text_of, call.args) if text.startswith("-")]
        long = [name for name in names if name.startswith("--")]
        if long:
            option = _option_of_call(call, sources, fields)
            aliases = (*long[1:], *(name for name in names if name not in long))
            added |= dict.fromkeys(long[1:], option)
            added[long[0]] = replace(option, aliases=aliases)
    return added


def _option_of_call(call: ast.Call, sources: Mapping[str, str], fields: _Fields) -> Option:
    option = Option()
    for word in call.keywords:
        match word.arg, word.value:
            case "default", value:
                option = replace(option, default=fields.default(shortened(value)))
            case "choices", value:
                option = replace(option, choices=fields.choices(value))
            case "action", ast.Constant(value="store_true"):
                option = replace(option, default="False")
            case "action", ast.Attribute(attr="BooleanOptionalAction"):
                option = replace(option, boolean=True)
            case None, ast.Subscript(value=ast.Name(id=name), slice=field):
                option = fields.option(sources.get(name, ""), text_of(field))
    return option


class _Fields:
    """Fields of configuration classes, and names of lists of choices, in all modules of a release."""

    def __init__(self, trees: Trees) -> None:
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, ast.expr] = {}
        for path, tree in trees.items():
            for node in tree.body if re.fullmatch(_CONFIG_FILES, path) else ():
                if isinstance(node, ast.ClassDef):
                    self._classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    target = targets_of(node)[0]
                    if isinstance(target, ast.Name):
                        self._values.setdefault(target.id, node.value)

    def own(self, name: str) -> dict[str, ast.AnnAssign]:
        """Return the annotated fields of a class, without those of its bases."""
        return {
            node.target.id: node
            for node in reversed(self._classes[name].body if name in self._classes else ())
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }

    def _field(self, name: str, field: str, depth: int = 8) -> ast.AnnAssign | None:
        if name not in self._classes or not depth:
            return None
        bases = (last_name(b) for b in self._classes[name].bases if isinstance(b, ast.Name))
        return self.own(name).get(field) or next(
            filter(None, (self._field(base, field, depth - 1) for base in bases)), None
        )

    def option(self, name: str, field: str) -> Option:
        statement = self._field(name, field)
        if statement is None:
            return Option()
        return Option(
            self.default(shortened(statement.value)),
            self.choices(statement.annotation),
            boolean=re.search(r"\bbool\b", ast.unparse(statement.annotation)) is not None,
        )

    def default(self, text: str, depth: int = 4) -> str:
        """Return a default; one that is taken from a field of another class is looked up there."""
        name, _, field = text.partition(".")
        statement = self._field(name, field) if field.isidentifier() and depth else None
        return text if statement is None else self.default(shortened(statement.value), depth - 1)

    def choices(self, node: ast.expr, depth: int = 6) -> tuple[str, ...]:
        """Return the values that an annotation or a list of choices allows; none if it allows
        others, too."""
        if not depth:
            return ()
        match node:
            case ast.Name(id=name) if name in self._values:
                return self.choices(self._values[name], depth - 1)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                return tuple(values) if len(values) == len(parts) else ()
            case ast.Subscript(value=value, slice=inner) if last_name(value) == "Literal":
                listed = inner if isinstance(inner, ast.Tuple) else ast.List([inner])
                return self.choices(listed, depth - 1)
            case (
                ast.Subscript(value=ast.Name(id="Optional"), slice=inner)
                | ast.BinOp(left=inner, right=ast.Constant(value=None))
                | ast.Call(func=ast.Name(id="get_args" | "list" | "sorted"), args=[inner, *_])
            ):
                return self.choices(inner, depth - 1)
        return ()


def environment_variables(trees: Trees) -> dict[str, str]:
    """Return the environment variables in ``vllm/envs.py`` with their defaults."""
    return {
        name: _default_of_variable(name, value)
        for node in ast.walk(trees.get("vllm/envs.py") or ast.Module([], []))
        for key, value in items_of(node)
        if _VARIABLE.fullmatch(name := text_of(key))
        and isinstance(value, ast.Lambda | ast.Call | ast.Name)
    }


def variables_elsewhere(trees: Trees) -> dict[str, str]:
    """Return the environment variables that any module reads itself, with their defaults."""
    found: dict[str, str] = {}
    for tree in trees.values():
        named: dict[str, str] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign([ast.Name(constant)], ast.Constant(str(value))):
                    named[constant] = value
                    continue
                case ast.Call(
                    ast.Attribute(attr="getenv") | ast.Name("getenv"), [name, *rest]
                ) | ast.Call(ast.Attribute(ast.Attribute(attr="environ"), "get"), [name, *rest]):
                    default = shortened(rest[0]) if rest else ""
                case ast.Subscript(ast.Attribute(attr="environ"), name, ast.Load()) | ast.Compare(
                    name, [ast.In() | ast.NotIn()], [ast.Attribute(attr="environ")]
                ):
                    default = ""
                case _:
                    continue
            text = text_of(name) or named.get(last_name(name), "")
            if text.startswith("VLLM_") and _VARIABLE.fullmatch(text):
                found[text] = found.get(text) or default
    return found


def _default_of_variable(name: str, node: ast.expr) -> str:
    for call in ast.walk(node):
        match call:
            case ast.Call(args=[first, *rest]) if text_of(first) == name:
                return shortened(rest[0]) if rest else ""
    return ""


def routes(trees: Trees) -> dict[str, str]:
    """Return the HTTP routes of the servers with their methods."""
    routes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for call in ast.walk(tree) if path.startswith("vllm/entrypoints/") else ():
            match call:
                case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[first, *_]):
                    route, router = text_of(first), getattr(owner, "id", "")
                    is_decorator = method in _METHODS and ("router" in router or router == "app")
                    if route.startswith("/") and (is_decorator or method in _ADDED):
                        verb = method.upper() if is_decorator and method != "api_route" else ""
                        routes.setdefault(route, set()).add(verb)
    return {route: ",".join(sorted(filter(None, verbs))) for route, verbs in sorted(routes.items())}


def metrics(trees: Trees) -> dict[str, str]:
    """Return the names of the metrics.

    One that a server shows only with ``--show-hidden-metrics-for-version`` is no longer among them.
    """
    return _texts(trees, ".*", _METRIC)


def _texts(trees: Trees, files: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the strings in some files that the pattern describes."""
    texts = {
        text_of(node)
        for path, tree in trees.items()
        if re.fullmatch(files, path)
        for node in _shown(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
    }
    return dict.fromkeys(sorted(filter(pattern.fullmatch, texts)), "")


def _shown(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without what runs only if hidden metrics are shown."""
    nodes: Iterable[ast.AST] = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and last_name(tree.test) == "show_hidden_metrics":
        nodes = tree.orelse
    else:
        yield tree
    for node in nodes:
        yield from _shown(node)


def parsers(trees: Trees) -> dict[str, str]:
    """Return the registered parsers as ``tool:hermes`` and ``reasoning:deepseek_r1`` with their
    classes."""
    registered: dict[str, str] = {}
    for path, tree in trees.items():
        if match := re.fullmatch(_PARSER_FILES, path):
            kind = "tool" if match[1] == "tool_parsers" else "reasoning"
            for node in ast.walk(tree):
                registered |= {f"{kind}:{name}": owner for name, owner in _registered(node)}
    return dict(sorted(registered.items()))


def _registered(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.ClassDef():
            for decorator in node.decorator_list:
                for call in _calls(decorator, "register_module"):
                    names = [word.value for word in call.keywords if word.arg == "name"]
                    for value in (*call.args, *names):
                        texts = map(text_of, getattr(value, "elts", [value]))
                        yield from ((text, node.name) for text in texts if text)
        case ast.Assign() | ast.AnnAssign() if last_name(targets_of(node)[0]).endswith(
            "_TO_REGISTER"
        ):
            for key, value in items_of(node.value):
                owner = value.elts[-1] if isinstance(value, ast.Tuple) and value.elts else value
                yield text_of(key), text_of(owner)


def architectures(trees: Trees) -> dict[str, str]:
    """Return the model architectures in the registry: what ``config.json`` of a model may name."""
    return {
        name: ""
        for path, tree in sorted(trees.items())
        if re.fullmatch(_MODEL_FILES, path)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and (table := last_name(targets_of(node)[0])).endswith("_MODELS")
        and not _NOT_SUPPORTED.fullmatch(table)
        for key, _ in items_of(node.value)
        if (name := text_of(key))
    }


def plugin_groups(trees: Trees) -> dict[str, str]:
    """Return the groups of entry points that vLLM loads."""
    return _texts(trees, _PLUGIN_FILES, _PLUGIN_GROUP)


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
