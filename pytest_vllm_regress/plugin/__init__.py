"""The pytest plugin: hooks that only delegate.

Nothing heavy is imported until a test asks for an engine or names a case.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from . import fixtures, options
from .state import (
    SESSION,
    Workers,
    needs_legs,
    refusal_of,
    refuse,
    settings_of,
    tell_worker,
    uses_target,
)

MARKERS = (
    "vllm_case(id, variant=None): this test shows the documented failure `id` (case.toml beside the test file); its outcome becomes a verdict",
    "vllm_engine(front='offline', fresh=False, timeout=None, **axes): the engine for this test; a list of values makes an axis, e.g. "
    "tensor_parallel_size=[1, 2]",
    "vllm_requires(**packages, cause=None): skip unless the target environment has these, e.g. vllm='>=0.8,<0.9 || >=0.12', ray='*'; "
    "cause='failure': elsewhere another failure is in the way, cause='harness': what the test uses does not work there",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    path = config.getoption("vllm_suite")
    if path and not hasattr(config, "workerinput"):
        from . import suite_report as suite

        suite.limit_each_test(config)
        config.pluginmanager.register(suite.SuiteReporter(Path(path)), "vllm_regress_suite")


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if options.any_set(config):
        options.warn_of_path_as_argument(config)
        settings_of(config)  # so that an invalid option stops the run before a test is collected
        _collect_verdicts(config)
    # Not by ``pytest_plugins``, which makes pytest read the entry points of all installed
    # distributions again.
    config.pluginmanager.register(fixtures, "vllm_regress_fixtures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vllm_env" in metafunc.fixturenames:
        from . import markers as axes

        axes.generate(metafunc)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Prepare a worker of pytest-xdist.

    Before the first one, show GPUs or refuse unusable ones: a worker has no terminal and cannot end
    the run.
    """
    config = node.config
    if (
        SESSION not in config.stash
        and options.any_set(config)
        and settings_of(config).device == "gpu"
    ):
        from . import session as harness

        terminal = config.pluginmanager.get_plugin("terminalreporter")
        lines = harness.header(config)
        if terminal is not None:
            terminal.ensure_newline()
            for line in lines:
                terminal.write_line(line)
    used = options.any_set(config)
    several = used and (config.getoption("numprocesses") or 0) > 1
    tell_worker(config, node.workerinput, share=several and settings_of(config).device != "gpu")
    if used:
        Workers.add(node)
    _collect_verdicts(config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if why := refusal_of(node):
        raise pytest.UsageError(why)


@pytest.hookimpl(wrapper=True)  # before xdist looks for groups, which it does first of all
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    if not any(uses_target(item) for item in items):
        return (yield)
    from . import markers as groups

    _collect_verdicts(config)
    groups.mark_groups(items)
    yield
    if hasattr(config, "workerinput"):
        from . import session as harness

        groups.begin_with_waits(items)
        try:
            harness.header(config)
        except pytest.UsageError as error:  # a worker has no terminal: its controller ends the run
            refuse(config, str(error))
            items.clear()
    groups.write_groups(items)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    if not any(uses_target(item) for item in items):
        return []
    from . import session as harness

    return harness.header(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if uses_target(item):
        from . import protocol as legs

        legs.begin(item)
        legs.check_applicable(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not uses_target(item):
        return (yield)
    from . import protocol as legs

    with legs.current(item):
        done = yield
    if SESSION in item.config.stash:
        item.config.stash[SESSION].end_test()
        item.config.stash[SESSION].give_way()
    return done


@pytest.hookimpl(tryfirst=True, specname="pytest_runtest_protocol")
def pytest_vllm_regress_legs(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a test whose verdict may need several runs with the plugin's own protocol. pytest or
    another plugin runs all other tests."""
    if not needs_legs(item):
        return None
    from . import protocol as legs

    return legs.run(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if not uses_target(pyfuncitem):
        return (yield)
    with fixtures.ending_forks(), fixtures.skipping(), fixtures.checking_scripts(pyfuncitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    with fixtures.skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if uses_target(item):
        from . import protocol as legs

        legs.remember(item, call, report)
        if report.failed and SESSION in item.config.stash:
            from .known_failures import name_known_failures

            name_known_failures(item, report)
    return report


def _collect_verdicts(config: pytest.Config) -> None:
    """From now on: where there may be any."""
    from . import reporter

    reporter.register(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].close()
        del config.stash[SESSION]
