"""Whether the installed vLLM has what a project uses, for ``vllm-regress uses --run``.

Names are imported and signatures bound. Nothing of the project is here but names and numbers, and
nothing of vLLM is called. Each function takes the values of one use and returns what is missing: an
empty text if everything exists, None if that cannot be said.
"""

import functools
import importlib
import inspect
import re
from typing import Any, Callable, Optional

_PATH = re.compile(r"vllm(\.\w+(\(\))?)*")
MAX_TEXT = 500


class Undecided(Exception):
    """Importing does not say: an attribute of an instance, or a module that needs something that is
    not installed."""


class Lacking(Exception):
    """The installed vLLM lacks it; the message says what."""


def _decided(check: Callable[..., str]) -> Callable[..., Optional[str]]:
    """Return ``check`` with None for what it cannot decide."""

    @functools.wraps(check)
    def answer(*values: Any, **named: Any) -> Optional[str]:
        try:
            return check(*values, **named)[:MAX_TEXT]
        except Lacking as lacking:
            return str(lacking)[:MAX_TEXT]
        except (Exception, SystemExit):
            # A module of vLLM that needs a package or hardware that is not here, for example.
            return None

    return answer


@_decided
def name(targets: list[str]) -> str:
    """Check that one of the paths exists (``()`` after a class: an instance of it)."""
    _first(targets)
    return ""


@_decided
def call(targets: list[str], positional: int, keywords: list[str]) -> str:
    """Check that the callable takes that many positional arguments and these keywords."""
    signature, bound = _signature(targets)
    values = [None] * (positional + bound)
    try:
        signature.bind_partial(*values, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not set(keywords) <= named:
            raise Undecided
    return ""


@_decided
def override(
    targets: list[str], method: str, names: list[str], positional: int, more: list[bool]
) -> str:
    """Check that the class has the method, and that an override takes what vLLM passes.

    ``names`` and ``positional``: what the override takes by name and by position. ``more``: whether
    it takes any others, by position and by name.
    """
    owner, _ = _first(targets)
    if not hasattr(owner, method):
        return f"the class {owner.__name__} has no {method}"
    function = getattr(owner, method)
    # Compiled functions have no signature: then nothing is decided.
    parameters = list(inspect.signature(function).parameters.values())
    passed = parameters[1 if _is_unbound(owner, method, function) else 0 :]
    by_name = [p for p in passed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [p for p in by_name if p.name not in names and not more[1]]
    count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in passed)
    too_many = count > positional and not more[0]
    if unknown and (too_many or any(p.kind is p.KEYWORD_ONLY for p in unknown)):
        return "{} is called with {}, which the override does not take".format(
            method, ", ".join(p.name for p in unknown)
        )
    return ""


@_decided
def option(flag: str, value: str = "") -> str:
    """Check that ``vllm serve`` has the option and, with a value, that this is one of those that it
    allows."""
    commandline = importlib.import_module("vllm_regress_target.dialect.commandline")
    actions = commandline.serve_parser()._actions
    if len(actions) < 2:
        raise Undecided
    action = next((action for action in actions if flag in action.option_strings), None)
    if action is None:
        return f"vllm serve has no {flag}"
    if not value:
        return ""
    if not action.choices:
        raise Undecided
    return "" if value in map(str, action.choices) else f"{flag} does not allow {value}"


@_decided
def parser(kind: str, wanted: str) -> str:
    """Check that a tool or a reasoning parser of this name is registered.

    ``kind``: tool or reasoning.
    """
    parsing = importlib.import_module("vllm_regress_target.dialect.parsing")
    try:
        parsing.parser_class(kind, wanted)
    except KeyError:
        return f"there is no {kind} parser {wanted}"
    return ""


@_decided
def environment(variable: str) -> str:
    """Check that vLLM reads an environment variable."""
    known = importlib.import_module("vllm.envs").environment_variables
    return "" if variable in known else f"vLLM does not read {variable}"


def _first(paths: list[str]) -> tuple[Any, bool]:
    """Return what the first path means that exists, and whether it is reached through an instance."""
    problem: Exception = Undecided()
    for number, path in enumerate(paths):
        try:
            return _find(path)
        except Lacking as lacking:
            problem = problem if number else lacking
    raise problem


def _find(path: str) -> tuple[Any, bool]:
    if not _PATH.fullmatch(path):
        raise Undecided
    parts = path.split(".")
    value: Any = None
    module, through_instance = "", False
    for number, part in enumerate(parts):
        attribute = part[:-2] if part.endswith("()") else part
        if not number:
            module, value = attribute, importlib.import_module(attribute)
        elif module:
            module, value = _in_module(module, value, attribute)
        elif inspect.isclass(value):
            if through_instance and not hasattr(value, attribute):
                raise Undecided  # an attribute that __init__ assigns
            if not hasattr(value, attribute):
                raise Lacking(f"the class {value.__name__} has no {attribute}")
            owner, value = value, getattr(value, attribute)
            if number + 1 < len(parts) or not _is_unbound(owner, attribute, value):
                through_instance = False
        else:
            raise Undecided
        if part.endswith("()"):
            if not inspect.isclass(value):
                raise Undecided
            through_instance = True
    return value, through_instance


def _in_module(module: str, value: Any, attribute: str) -> tuple[str, Any]:
    """Return what ``from module import attribute`` means: the name of a submodule, else nothing,
    and the value."""
    try:
        found = getattr(value, attribute)
    except AttributeError:
        submodule = f"{module}.{attribute}"
        try:
            return submodule, importlib.import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name == submodule:
                raise Lacking(f"cannot import name {attribute!r} from {module!r}") from None
            raise
    return (found.__name__, found) if inspect.ismodule(found) else ("", found)


def _signature(paths: list[str]) -> tuple[inspect.Signature, int]:
    """Return a signature, and how many arguments Python adds in front: 1 for a method that is
    called on an instance."""
    value, through_instance = _first(paths)
    return inspect.signature(value), int(through_instance and not inspect.isclass(value))


def _is_unbound(owner: Any, attribute: str, value: Any) -> bool:
    """Return whether an attribute of a class is a function that gets the instance when it is
    called."""
    return inspect.isfunction(value) and not isinstance(
        inspect.getattr_static(owner, attribute), staticmethod
    )
