"""The markers, parsed once for each test: what axes and several environments make of a test
function, and on which xdist worker it belongs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ..cases.collection import engine_marker, parameters
from ..cases.loading import load_case_for
from ..cases.model import SPECIFIER_HELP, Case
from ..engines.spec import combination_id, combinations
from ..engines.target import RELEVANT, Target
from ..environments.installed import VLLM
from ..errors import Cause, Kind, RegressError, Unsupported, UsageError
from ..util.validation import did_you_mean
from ..util.versions import alternatives_of
from .options import engine_defaults
from .session import session_of
from .state import settings_of, write_group

_ENGINE_FIXTURES = ("engine_spec", "vllm_engine", "vllm_server")
FACTORY = "vllm_engines"
_CLOSE = 0.8
"""Similarity of a misspelled package: vlm and vllm have 0.86, but torchaudio and torch 0.67."""
_NOT_IN_A_NAME = re.compile(
    r"[^\w.=]+"
)  # xdist looks for a group behind the last "@" of a test's id, if no "]" follows


@dataclass(frozen=True)
class MarkedCase:
    """The case that a test belongs to (case.toml beside its file) and the variant that it shows."""

    case: Case
    variant: str | None


_CASE: pytest.StashKey[MarkedCase | None] = pytest.StashKey()


def marked_case(item: pytest.Item) -> MarkedCase | None:
    """The case of a test, None without the marker ``vllm_case``; parsed once.

    Raises ``pytest.UsageError`` or ``CaseFileError``.
    """
    if _CASE not in item.stash:
        marker = item.get_closest_marker("vllm_case")
        if sum(own.name == "vllm_case" for own in item.own_markers) > 1:
            raise pytest.UsageError(
                f"{item.nodeid}: two markers vllm_case, and a test shows one failure: leave the function's out where pytest.param brings others"
            )
        item.stash[_CASE] = _marked_case(item, marker) if marker is not None else None
    return item.stash[_CASE]


def _marked_case(item: pytest.Item, marker: pytest.Mark) -> MarkedCase:
    variant = marker.kwargs.get("variant")
    unknown = sorted(set(marker.kwargs) - {"variant", "id"})
    case = load_case_for(item.path)
    case_id = marker.args[0] if marker.args else marker.kwargs.get("id", case.id)
    if unknown or len(marker.args) > 1:
        raise pytest.UsageError(
            f"{item.nodeid}: vllm_case takes an id and variant=, not {', '.join(unknown) or marker.args!r}"
        )
    if case_id != case.id:
        raise pytest.UsageError(
            f"{item.nodeid}: vllm_case({case_id!r}), but {item.path.with_name('case.toml')} has id {case.id!r}"
        )
    if variant is not None and variant not in case.variants:
        raise pytest.UsageError(
            f"{item.nodeid}: {case.id} has no variant {variant!r}; it has {', '.join(sorted(case.variants)) or 'none'}"
        )
    return MarkedCase(case, variant)


def check_requirements(item: pytest.Item, target: Target, failing: str = "vllm") -> None:
    """Marker ``vllm_requires``: raises ``Unsupported`` where the target lacks something.

    ``failing``: the package with the failure. Releases of it that are not enough lack the feature.
    ``cause="failure"``: elsewhere another failure is in the way. ``cause="harness"``: what the test
    uses to provoke the failure does not work there. In both, nothing is known of this failure.
    """
    for marker in item.iter_markers("vllm_requires"):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: vllm_requires takes keywords, e.g. vllm_requires(vllm='>=0.8')"
            )
        packages = dict(marker.kwargs)
        cause = packages.pop("cause", None)
        if cause not in (None, Cause.FAILURE, Cause.HARNESS):
            raise pytest.UsageError(
                f"{item.nodeid}: vllm_requires(cause={cause!r}): only 'failure' and 'harness' are allowed"
            )
        for name, specifier in packages.items():
            package = name.replace("_", "-").lower()
            allowed = alternatives_of("" if specifier == "*" else specifier)
            if allowed is None:
                raise pytest.UsageError(
                    f"{item.nodeid}: vllm_requires({name}={specifier!r}): {SPECIFIER_HELP}"
                )
            version = target.versions.get(package)
            if version is None or not any(
                alternative.contains(version.partition("+")[0], prereleases=True)
                for alternative in allowed
            ):
                known = {*RELEVANT, *target.versions}
                hint = "" if package in known else did_you_mean(package, known, cutoff=_CLOSE)
                has = f"{package} {version}" if version else f"no {package}{hint and '.'}{hint}"
                wanted = f"{package} {specifier}"
                is_other_release = package in VLLM or (version and package == failing)
                lack = {"lacks" if is_other_release else "needs": wanted}
                error = Unsupported(f"{target.name} has {has}", **lack)
                error.cause = Cause(cause or error.cause)
                raise error


def generate(metafunc: pytest.Metafunc) -> None:
    """Parametrize over environments and over the marker's axes."""
    if settings_of(metafunc.config).environments:
        names: tuple[str, ...] = ()
        with contextlib.suppress(
            RegressError
        ):  # a name that does not exist: `session.header` ends the run with it
            names = session_of(metafunc.config).environment_names()
        if len(names) > 1:
            metafunc.parametrize("vllm_env", names, indirect=True, scope="session")
    try:
        marker = engine_marker(metafunc.definition)
    except UsageError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    if not marker.axes:
        return
    if "engine_spec" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid}: vllm_engine gives axes ({', '.join(a.name for a in marker.axes)}), but the test uses none of the "
            f"fixtures {', '.join(_ENGINE_FIXTURES)}"
        )
    combos = combinations(marker.axes)
    metafunc.parametrize(
        "engine_spec", combos, indirect=True, ids=[combination_id(c) for c in combos]
    )


def mark_groups(items: list[pytest.Item]) -> None:
    """Give each test its xdist group, so that under ``--dist loadgroup`` tests of one environment
    and engine share the engine of one worker.

    Tests with their own group or engine are left alone, and so are tests that may show a documented
    hang: others would wait behind them.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") or _may_hang(item):
            continue
        name = _engine_of_markers(item) if _takes_engine(item) else _engine_of_fixtures(item)
        if name:
            item.add_marker(pytest.mark.xdist_group(_NOT_IN_A_NAME.sub("-", name).strip("-")))


def _engine_of_markers(item: pytest.Item) -> str:
    """Return a name for the engine of a test; empty if no other test shares it."""
    params, marker = parameters(item), engine_marker(item)
    values = {**marker.fixed, **params.get("engine_spec", {})}
    name = f"{params.get('vllm_env', '')} {marker.front} {sorted(values.items(), key=repr)}"
    return "" if marker.fresh else name


def _engine_of_fixtures(item: pytest.Item) -> str:
    """Return the environment of a test, and its first fixture that takes engines from the factory;
    empty if it has none."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    for name, definitions in known.items():
        if any(FACTORY in definition.argnames for definition in definitions):
            return f"{parameters(item).get('vllm_env', '')} {definitions[-1].baseid} {name}"
    return ""


def begin_with_waits(items: list[pytest.Item]) -> None:
    """In which order do tests run under xdist? Those that may show a documented hang first, engines and servers
    before probes, then probes before engines.

    A test that waits for a hang uses little CPU time, so other workers can compute meanwhile. A
    worker gets two tests at a time; with probes next, the test that waits behind a hang is a short
    one.
    """
    hangs = {item for item in items if _may_hang(item)}
    if hangs:
        items.sort(key=lambda item: (item not in hangs, _takes_engine(item) != (item in hangs)))


def _takes_engine(item: pytest.Item) -> bool:
    return "engine_spec" in getattr(item, "fixturenames", ())


def _may_hang(item: pytest.Item) -> bool:
    with contextlib.suppress(
        pytest.UsageError, RegressError
    ):  # raised again where the test is to run
        marked = marked_case(item)
        if marked is not None and Kind.HANG in marked.case.symptom.kinds:
            return marked.variant is None or not marked.case.variant(marked.variant).never
    return False


def defaults_for(item: pytest.Item) -> Mapping[str, Any]:
    """Return the fields of the engine that the project sets for all tests. The engine of a case is
    part of its proof, so they do not concern it."""
    is_case = item.get_closest_marker("vllm_case") is not None
    return {} if is_case else engine_defaults(item.config)


def write_groups(items: list[pytest.Item]) -> None:
    """Put the groups into the tests' ids where xdist cannot."""
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group and item.config.getoption("loadgroup", False) and item.nodeid == test_id(item):
            write_group(item, group.args[0] if group.args else group.kwargs.get("name", "default"))


def test_id(item: pytest.Item) -> str:
    """The test's id without xdist's group: what pytest takes on its command line."""
    stem, _, group = item.nodeid.rpartition("@")
    has_group = stem and item.get_closest_marker("xdist_group")
    return stem if has_group and not re.search(r"\]|/|::", group) else item.nodeid
