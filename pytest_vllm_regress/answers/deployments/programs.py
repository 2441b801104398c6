"""Servers in Python source, as Modal's: lists of words, commands in strings, and engine arguments of
vLLM's own application; and in the cells of notebooks."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import dedent
from typing import Any, TypeGuard

from ...util.documents import parse_json
from .branches import MORE, sometimes
from .defaults import by_default
from .findings import DEFAULT_OF_VARIABLE, Pin, ServerCommand, Unreadable, Word, literal
from .shell import is_image, names_model, of_image, of_script, servers
from .shell_words import split

_PRINTS = ("print", "info", "debug", "warning", "error", "log", "echo")
_IMAGE_KEYS = ("imagename", "image", "dockerimage", "containerimage")
_ARGUMENT_KEYS = ("dockerargs", "dockerstartcmd", "args", "command")
_BUILDS_COMMAND = re.compile(
    r"(?i)\w*vllm\w*(?:command|cmd|server_args)|\w*(?:command|cmd)\w*vllm\w*|make_arg_parser"
)
"""Names of functions, defined in other modules, that build the command of a server or parse it."""
_RUNS = re.compile(
    r"(?i).*(?:run|popen|call|system|exec|spawn|launch|start|submit|shell|join|write|print|log|put|send|debug|info|warn|error).*"
)
"""Functions that run a command as it is, or show it."""
_HOLE = re.compile(r"%(?:\(\w+\))?[srd](?!\w)|\{[\w.\[\]]*\}")
"""A place for a value in a text."""
_LONG_STRING = re.compile(
    r"\"\"\"(?P<double>[^\"]*(?:\"{1,2}[^\"]+)*)\"\"\"|'''(?P<single>[^']*(?:'{1,2}[^']+)*)'''"
)
_MANIFEST = re.compile(r"(?m)^[ \t]*(?:apiVersion|services):")
_FROM_ENVIRONMENT = ("get", "getenv")
_REQUIRED = re.compile(
    r"(?<![\w.-])vllm(?:\[[\w,-]*\])?\s*((?:===?|[<>~!]=|[<>])\s*[\w.*+!]+(?:\s*,\s*(?:[=<>~!]=|[<>])\s*[\w.*]+)*)"
)
_STATEMENT = re.compile(r"(?m)^(?=[A-Za-z_@])")
MAX_STATEMENTS = 5_000
MAX_DEPTH = 20
MAX_JOINED = 100
"""Most additions to a list that are read."""
_Variable = tuple[str, int]
"""A name, and the function in which it is assigned."""


def texts_of_notebook(text: str) -> Iterator[str]:
    """Yield the cells of a notebook that are no code."""
    with contextlib.suppress(ValueError):
        yield from _cells(text, "markdown")


def of_notebook(text: str) -> Iterator[ServerCommand | Unreadable]:
    """Yield the servers that the cells start: commands behind ``!``, and cells of a shell."""
    try:
        for cell in _cells(text, "code"):
            yield from _of_cell(cell)
    except ValueError as error:
        yield Unreadable(str(error)[:200])


def _cells(text: str, kind: str) -> Iterator[str]:
    document = parse_json(text)
    cells = document.get("cells") if isinstance(document, dict) else None
    for cell in cells if isinstance(cells, list) else []:
        source = cell.get("source") if isinstance(cell, dict) else None
        if source and cell.get("cell_type") == kind:
            yield "".join(map(str, source)) if isinstance(source, list) else str(source)


def manifests_in(text: str, *, is_notebook: bool = False) -> Iterator[str]:
    """Yield the long strings of a program, or of a notebook's code, that are manifests."""
    with contextlib.suppress(ValueError):
        for code in _cells(text, "code") if is_notebook else [text]:
            for match in _LONG_STRING.finditer(code):
                body = match["double"] or match["single"] or ""
                if _MANIFEST.search(body):
                    yield dedent(_HOLE.sub("$VALUE", body))


def _of_cell(text: str) -> Iterator[ServerCommand]:
    first = text.lstrip().partition("\n")[0]
    if first.startswith(("%%bash", "%%sh", "%%script", "%%shell", "%%writefile")):
        yield from of_script(text.lstrip().partition("\n")[2])
        return
    shell, goes_on = [], False
    for line in text.split("\n"):
        goes_on = goes_on or line.lstrip().startswith("!")
        shell.append(line.lstrip(" !") if goes_on else "")
        goes_on = goes_on and line.rstrip().endswith("\\")
    yield from of_script("\n".join(shell))
    python = [line if not line.lstrip().startswith(("!", "%")) else "" for line in text.split("\n")]
    if "vllm" in text and not any(shell):
        yield from (
            found for found in of_python("\n".join(python)) if isinstance(found, ServerCommand)
        )


def of_python(text: str) -> Iterator[ServerCommand | Pin | Unreadable]:
    """Yield the servers that a program starts, and releases that it installs. A variable that has
    one value is replaced by it. Of a program with an error the other statements are read."""
    problem = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            try:
                tree = ast.parse(text)
            except SyntaxError as error:
                problem = f"not valid Python: {str(error)[:200]}"
                tree = ast.parse(_valid_parts(text))
        program = _Program(tree, text)
        started = _without_bare(program.servers()) or program.started_elsewhere()
        found: list[ServerCommand | Pin] = [*started, *program.pins()]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield Unreadable(f"not valid Python: {str(error)[:200]}")
        return
    if problem:
        yield Unreadable(problem)
    yield from found


def _without_bare(servers: Iterable[ServerCommand]) -> list[ServerCommand]:
    """Return the servers without the programs alone, to which arguments are added somewhere; one of
    them if there is no other server."""
    found = list(servers)
    started = [server for server in found if server.words or server.settings]
    return started or found[:1]


def _valid_parts(text: str) -> str:
    """Return a program without the top-level statements that cannot be parsed."""
    parts = _STATEMENT.split(text)[:MAX_STATEMENTS]
    return "".join(part if _is_valid(part) else "\n" * part.count("\n") for part in parts)


def _is_valid(part: str) -> bool:
    try:
        ast.parse(part)
    except SyntaxError:
        return False
    return True


def _is_command(server: ServerCommand) -> bool:
    """Return whether a text names a model or an option after ``vllm serve``: others are about it."""
    return any(word.startswith(("-", "$")) or "/" in word for word in server.words)


def _added_to(name: str, value: ast.expr) -> ast.expr | None:
    """Return what ``name = name + more`` adds."""
    match value:
        case ast.BinOp(left, ast.Add(), right) if _name(left) == name:
            return right
        case ast.List([ast.Starred(left), *rest]) if _name(left) == name:
            return ast.copy_location(ast.List(rest), value)
    return None


def _is_list_sum(node: ast.AST, depth: int = 0) -> TypeGuard[ast.BinOp]:
    """Return whether an expression adds a list and something else."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add) or depth > MAX_DEPTH:
        return False
    parts = (node.left, node.right)
    return any(isinstance(part, ast.List) or _is_list_sum(part, depth + 1) for part in parts)


def _name(node: ast.AST) -> str:
    """Return the name of a variable or of an attribute (``sys.argv``); empty for other expressions."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _start_of_sum(node: ast.AST) -> ast.AST:
    """Return the first operand of ``a + b + c``, or the first part of ``f"{a} b"``."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node = node.left
    if isinstance(node, ast.JoinedStr) and len(node.values) > 1:
        node = node.values[0]
    return node.value if isinstance(node, ast.FormattedValue) else node


class _Uses(ast.NodeVisitor):
    """The variables and functions whose value is a part of another command, or may be changed.

    ``names``: of both. ``returned``: for each function the variables that it returns. ``lists``: those
    that it returns as they are written.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.names: set[str] = set()
        self._returned: dict[str, set[str]] = {}
        self._lists: dict[str, set[int]] = {}
        self._aliases: list[tuple[str, str]] = []
        self._function = ""
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._function = node.name
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        self._note_return(inner.value)
            self._note(node)
        for _ in range(MAX_DEPTH):
            before = len(self.names)
            self.names |= {of for name, of in self._aliases if name in self.names}
            for function in self._returned.keys() & self.names:
                self.names |= self._returned[function]
            if len(self.names) == before:
                break
        self.lists = {n for f, ns in self._lists.items() if f in self.names for n in ns}

    def _note_return(self, value: ast.expr) -> None:
        self._returned.setdefault(self._function, set()).add(_name(value))
        self._lists.setdefault(self._function, set()).add(id(value))

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Starred(value):
                self._add(value)
            case ast.Assign([target, *_], value):
                if isinstance(target, ast.Subscript):
                    self._add(target.value)
                elif (of := _called_name(value)) and (name := _name(target)):
                    self._aliases.append((name, of))
                elif isinstance(value, ast.JoinedStr):
                    self._add(_start_of_sum(value))
            case ast.AugAssign(target):
                self.names.add(_name(target))
            case ast.BinOp(_, ast.Add(), right) if not _is_known(right):
                self._add(_start_of_sum(node))
            case ast.Expr(ast.Call(function, arguments)):
                name = getattr(function, "attr", getattr(function, "id", ""))
                if name in ("insert", "extend", "append") and isinstance(function, ast.Attribute):
                    self.names.add(_name(function.value))
                elif not _RUNS.fullmatch(name):
                    for argument in arguments:
                        self.names.add(_name(argument))
            case ast.Call(function, [ast.JoinedStr() as text, *_]):
                if getattr(function, "attr", getattr(function, "id", "")) not in _PRINTS:
                    self._add(_start_of_sum(text))

    def _add(self, node: ast.AST) -> None:
        self.names.add(_called_name(node))


def _called_name(node: ast.AST) -> str:
    """Return the name of a variable, or of a function of the program that is called."""
    return _name(node.func) if isinstance(node, ast.Call) else _name(node)


def _is_known(node: ast.AST) -> bool:
    return isinstance(node, (ast.List, ast.Constant, ast.JoinedStr))


class _Program:
    def __init__(self, tree: ast.Module, text: str) -> None:
        self._tree = tree
        self._serves = "vllm.entrypoints" in text or "VLLMArgs" in text
        self._names: dict[str, ast.expr | None] = {}
        self._assigned: dict[int, _Variable] = {}
        self._more: dict[_Variable, list[tuple[ast.expr, bool]]] = {}
        self._likely: set[int] = set()  # what is added by default
        self._is_likely = True  # whether the current statement is executed by default
        self._left_out: set[int] = set()
        self._texts: set[int] = set()
        self._is_joining = False
        self._joined: set[int] = set()  # lists whose texts become one
        self._bodies: dict[_Variable, int] = {}
        self._made: set[_Variable] = set()
        self._scope = 0
        self._uses = _Uses(tree)
        self._read(tree, 0)

    def _read(self, node: ast.AST, body: int) -> None:
        """Note the values of variables, what is added to lists, and texts that are no commands."""
        outer, is_likely = self._scope, self._is_likely
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._scope = id(node)
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.If) and name != "test":
                chosen = by_default(node.test, self._names)
                self._is_likely = is_likely and bool(chosen) == (name == "body")
                self._is_likely = self._is_likely and chosen is not None
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._note(child, id(value) if isinstance(value, list) else body)
                    inner = id(value) if name in ("body", "orelse", "handlers") else body
                    self._read(child, inner)
        self._scope, self._is_likely = outer, is_likely

    def _note(self, node: ast.AST, body: int) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if (name := _name(target)) and node.value is not None:
                    if (added := _added_to(name, node.value)) is not None:
                        self._add(name, added, body)
                        self._left_out.add(id(node.value))
                        continue
                    known = self._names.get(name, node.value)
                    same = known is not None and ast.dump(known) == ast.dump(node.value)
                    self._names[name] = node.value if same else None
                    variable = self._variable(name)
                    self._assigned[id(node.value)] = variable
                    self._bodies[variable] = body
                    if isinstance(node.value, (ast.List, ast.Constant)):
                        self._made.add(variable)
        elif isinstance(node, ast.AugAssign) and (name := _name(node.target)):
            self._add(name, node.value, body)
        elif isinstance(node, ast.Expr):
            self._note_statement(node.value, body)
        elif isinstance(node, ast.BinOp):
            self._note_sum(node)
        match node:
            case ast.Call(ast.Attribute(ast.Constant(" "), "join"), [ast.List(items) as listed]):
                self._joined.add(id(listed))
                self._left_out |= {id(item) for item in items if isinstance(item, ast.Constant)}

    def _note_sum(self, node: ast.BinOp) -> None:
        is_known = isinstance(node.right, (ast.List, ast.Constant, ast.JoinedStr))
        if isinstance(node.left, ast.Name) and isinstance(node.op, ast.Add) and not is_known:
            self._add(node.left.id, node.right, 0)  # wherever the sum is used

    def _note_statement(self, value: ast.expr, body: int) -> None:
        if isinstance(value, ast.Constant):  # a docstring
            self._left_out.add(id(value))
            self._texts.add(id(value))
        if not isinstance(value, ast.Call):
            return
        function, owner = value.func, ""
        if isinstance(function, ast.Attribute):
            name = function.attr
            owner = _name(function.value)
        else:
            name = function.id if isinstance(function, ast.Name) else ""
        if name in ("extend", "append") and owner and value.args:
            added = value.args[0]
            if name == "append":
                added = ast.copy_location(ast.List([added]), added)
            self._add(owner, added, body)
        elif name in _PRINTS:
            self._left_out |= {id(part) for part in ast.walk(value)}

    def _add(self, name: str, value: ast.expr, body: int) -> None:
        variable = self._variable(name)
        self._likely |= {id(value)} if self._is_likely else set()
        self._more.setdefault(variable, []).append((value, body == self._bodies.get(variable)))

    def _variable(self, name: str) -> _Variable:
        return name, 0 if "." in name else self._scope  # an attribute is the same everywhere

    def servers(self) -> Iterator[ServerCommand]:
        for node in ast.walk(self._tree):
            if id(node) in self._left_out:
                continue
            if isinstance(node, (ast.List, ast.Tuple)) or _is_list_sum(node):
                words = self._words(node)
                for server in servers(words):  # without words, they are added elsewhere
                    yield replace(server, complete=server.complete and names_model(server.words))
            elif isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                text = self._text(node)
                text = _HOLE.sub("$VALUE", text) if isinstance(node, ast.Constant) else text
                text += self._more_text(node)
                if "vllm" in text and any(c.isspace() for c in text):
                    line = node.lineno
                    yield from filter(_is_command, of_script(text, line))
                    self._left_out |= {id(part) for part in ast.walk(node)}
            elif isinstance(node, (ast.Call, ast.Dict)):
                yield from self._of_container(node)
                if isinstance(node, ast.Call):
                    yield from self._of_arguments(node) if self._serves else ()
                    yield from self._of_ray(node)

    def _more_text(self, node: ast.expr) -> str:
        """Return what is added to the text of a variable."""
        variable = self._assigned.get(id(node))
        more = self._more.get(variable, ()) if variable else ()
        texts = [
            self._text(added) if certain else " ".join(["", *self._sometimes(added), MORE])
            for added, certain in more
        ]
        return "".join(texts) + (f" {MORE}" if self._is_part(node) else "")

    def _sometimes(self, added: ast.expr) -> list[Word]:
        return sometimes(split(self._text(added))) if id(added) in self._likely else []

    def pins(self) -> Iterator[Pin]:
        """Yield the releases in texts such as ``f"vllm=={VERSION}"``, without docstrings."""
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in self._texts:
                text = DEFAULT_OF_VARIABLE.sub(r"\1", self._text(node))
                for specifier in _REQUIRED.findall(text):
                    yield Pin(specifier.replace(" ", ""), node.lineno)

    def _words(self, node: ast.expr) -> list[Word]:
        """Return the words of a list, with what is added to its variable."""
        if isinstance(node, ast.BinOp):
            return self._summed(node)
        assert isinstance(node, (ast.List, ast.Tuple))
        words: list[Word] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                words += self._listed(item.value)
            elif id(node) in self._joined:
                words += split(self._text(item) or MORE, item.lineno)
            else:
                words.append(Word(self._text(item) or "$VALUE", item.lineno, True))
        variable = self._assigned.get(id(node))
        additions = self._more.get(variable, []) if variable else []
        for added, certain in additions[:MAX_JOINED]:
            more = self._listed(added)
            likely = sometimes(more) if id(added) in self._likely else ()
            words += more if certain else [*likely, Word(MORE, node.lineno)]
        is_open = self._is_part(node) or len(additions) > MAX_JOINED
        if is_open or (variable and self._is_passed(variable)):
            words.append(Word(MORE, node.lineno))
        return words

    def _is_part(self, node: ast.AST) -> bool:
        """Return whether what is here is only a part of a command, or is changed in a way that is not
        understood."""
        variable = self._assigned.get(id(node))
        known = self._more.get(variable) if variable else None
        is_used = variable is not None and not known and variable[0] in self._uses.names
        return is_used or id(node) in self._uses.lists

    def _is_passed(self, variable: _Variable) -> bool:
        """Return whether another function adds to a list of this name that it did not make."""
        return any(
            name == variable[0] and (name, scope) not in self._made for name, scope in self._more
        )

    def _summed(self, node: ast.expr, *, is_first: bool = True, depth: int = 0) -> list[Word]:
        """Return the words of lists that are added."""
        self._left_out.add(id(node))
        if isinstance(node, ast.BinOp) and depth <= MAX_DEPTH:
            left = self._summed(node.left, is_first=is_first, depth=depth + 1)
            return [*left, *self._summed(node.right, is_first=False, depth=depth + 1)]
        if isinstance(node, ast.List):
            return self._words(node)
        if is_first and isinstance(node, ast.Name) and self._names.get(node.id) is None:
            return [Word(f"${node.id}", node.lineno)]  # perhaps the program
        return self._listed(node)

    def _listed(self, node: ast.expr) -> list[Word]:
        value = self._names.get(node.id) if isinstance(node, ast.Name) else node
        if isinstance(value, ast.IfExp) and (chosen := self._chosen(value)) is not None:
            value = chosen
        if isinstance(value, (ast.List, ast.Tuple)):
            return [Word(self._text(item) or "$VALUE", node.lineno, True) for item in value.elts]
        return [Word(MORE, getattr(node, "lineno", 1))]

    def _of_container(self, node: ast.Call | ast.Dict) -> Iterator[ServerCommand]:
        """Yield the server of a container that is described by keywords or keys: RunPod's
        ``create_pod(image_name=..., docker_args=...)``."""
        if isinstance(node, ast.Call):
            pairs = [(keyword.arg or "", keyword.value) for keyword in node.keywords]
        else:
            keys = [key.value if isinstance(key, ast.Constant) else "" for key in node.keys]
            pairs = [(str(key), value) for key, value in zip(keys, node.values, strict=True)]
        texts = {key.lower().replace("_", ""): value for key, value in pairs}
        image = next((self._text(texts[key]) for key in _IMAGE_KEYS if key in texts), "")
        if not image and isinstance(node, ast.Call) and node.args:  # of Docker's own library
            image = self._text(node.args[0])
        arguments = next((texts[key] for key in _ARGUMENT_KEYS if key in texts), None)
        if arguments is None or not is_image(image):
            return
        known = self._names.get(arguments.id) if isinstance(arguments, ast.Name) else arguments
        if isinstance(known, (ast.List, ast.Tuple)):
            words = self._words(known)
            if any(servers(words)):  # the list is read by itself
                return
        else:
            words = split(self._text(arguments), node.lineno)
        if words:
            yield from of_image(Word(image, node.lineno), words, {})

    def _of_arguments(self, node: ast.Call) -> Iterator[ServerCommand]:
        """Yield the server of vLLM's application around ``AsyncEngineArgs(...)``."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("AsyncEngineArgs", "EngineArgs", "VLLMArgs", "from_cli_args"):
            return
        complete = all(keyword.arg for keyword in node.keywords) and not node.args
        if (variable := self._assigned.get(id(node))) is not None:  # its attributes may be assigned
            complete = complete and not any(n.startswith(f"{variable[0]}.") for n in self._names)
        yield ServerCommand(
            (), node.lineno, settings=self._settings(node.keywords), complete=complete
        )

    def _of_ray(self, node: ast.Call) -> Iterator[ServerCommand]:
        """Yield the server that Ray Serve starts for an ``LLMConfig``."""
        given = {keyword.arg: self._mapping(keyword.value) for keyword in node.keywords}
        loading, options = given.get("model_loading_config"), given.get("engine_kwargs")
        if getattr(node.func, "attr", getattr(node.func, "id", "")) != "LLMConfig" or not loading:
            return
        model = loading.get("model_source") or loading.get("model_id")
        settings = {**({"model": model} if model else {}), **(options or {})}
        is_known = "engine_kwargs" not in given or options is not None
        yield ServerCommand((), node.lineno, settings=settings, complete=is_known)

    def _mapping(self, node: ast.expr) -> dict[str, Any] | None:
        """Return the content of a dict display or a ``dict()`` call; None if it is not known."""
        node = (self._names.get(node.id) or node) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
            pairs = node.keywords
        elif isinstance(node, ast.Dict):
            keys = (getattr(key, "value", None) for key in node.keys)
            pairs = [
                ast.keyword(str(key) if key else None, value)
                for key, value in zip(keys, node.values, strict=True)
            ]
        else:
            return None
        return self._settings(pairs) if all(pair.arg for pair in pairs) else None

    def _settings(self, keywords: Sequence[ast.keyword]) -> dict[str, Any]:
        return {
            keyword.arg: keyword.value.value
            if isinstance(keyword.value, ast.Constant)
            else literal(self._text(keyword.value) or "$VALUE")
            for keyword in keywords
            if keyword.arg
        }

    def started_elsewhere(self) -> Iterator[ServerCommand]:
        """Yield the server whose command is built by a function of another module."""
        imported = {
            alias.asname or alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if _BUILDS_COMMAND.fullmatch(alias.name)
        }
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in imported:
                yield ServerCommand((), node.lineno, is_certain=False, complete=False)
                return

    def _text(self, node: ast.AST | None, depth: int = 0) -> str:
        """Return the text of an expression, with ``$NAME`` for what is not known; empty for what is
        no text at all."""
        if depth > MAX_DEPTH:
            return ""
        if isinstance(node, ast.Constant):
            return str(node.value) if isinstance(node.value, (str, int, float)) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part, depth + 1) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, depth + 1) or "$VALUE"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left, depth + 1) + self._text(node.right, depth + 1)
        if isinstance(node, ast.Name):
            value = self._names.get(node.id)
            text = "" if isinstance(value, (ast.List, ast.Dict)) else self._text(value, depth + 1)
            return text or f"${node.id}"
        if isinstance(node, ast.Attribute):
            return "python" if node.attr == "executable" else f"${node.attr}"
        if isinstance(node, ast.IfExp):
            return self._of_condition(node, depth)
        if isinstance(node, ast.Call):
            return self._of_call(node, depth)
        return ""

    def _of_condition(self, node: ast.IfExp, depth: int) -> str:
        chosen = self._chosen(node)
        return "$VALUE" if chosen is None else self._text(chosen, depth + 1)

    def _chosen(self, node: ast.IfExp) -> ast.expr | None:
        """Return the branch that a test with a constant chooses."""
        test = self._names.get(node.test.id) if isinstance(node.test, ast.Name) else node.test
        if isinstance(test, ast.Constant):
            return node.body if test.value else node.orelse
        return None

    def _of_call(self, node: ast.Call, depth: int) -> str:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("str", "quote", "Path") and node.args:
            return self._text(node.args[0], depth + 1)
        if name in _FROM_ENVIRONMENT and node.args and isinstance(node.args[0], ast.Constant):
            default = self._text(node.args[1], depth + 1) if len(node.args) > 1 else ""
            name = str(node.args[0].value)
            return f"${{{name}:-{default}}}" if default else f"${name}"
        if name == "join" and (words := self._joined_words(node)):
            return " ".join(shlex.quote(w) if re.search(r"\s", w) else w for w in words)
        return "" if name in ("join", "run", "Popen") else "$VALUE"

    def _joined_words(self, node: ast.Call) -> list[Word]:
        """Return the items of the list that ``" ".join(NAME)`` joins, as words."""
        match node:
            case ast.Call(ast.Attribute(ast.Constant(" ")), [ast.Name(name)]):
                listed = self._names.get(name)
                more = self._more.get(self._assigned.get(id(listed), ("", 0)), ())
                is_long = len(more) > MAX_JOINED
                if not isinstance(listed, ast.List) or is_long or self._is_joining:
                    return []
                self._is_joining = True  # only one list, since each may join others
                words = self._words(listed)
                self._is_joining = False
                return words
        return []
