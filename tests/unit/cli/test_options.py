"""One word for one thing in the options of all commands (docs/reference/options-of-commands.md)."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress import cli
from tools.options import MOST_OPTIONS, commands, counts, options_of
from tools.reference import WORDS

SYNONYMS = {
    "--dry-run": ("--plan", "--list-only", "--preview", "--simulate", "--no-run"),
    "--env": ("--environment", "--interpreter", "--target", "--vllm", "--venv"),
    "--format": ("--json", "--github", "--osv", "--issue", "--ci-failure", "--print", "--as"),
    "--fresh": ("--restart", "--again", "--no-resume", "--force", "--overwrite"),
    "--jobs": ("--workers", "--parallel", "--processes", "--threads"),
    "--log-file": ("--log",),
    "--only": ("--missing", "--select", "--filter"),
    "--out": (
        *("--output", "--results", "--destination", "--dest", "--save"),
        *("--html", "--junit", "--markdown", "--sarif", "--pages", "--to"),
    ),
    "--releases": ("--versions", "--range", "--specifier", "--release"),
    "--serve": ("--deployment", "--server-command"),
    "--source": ("--clone", "--repository", "--repo"),
    "--write": ("--apply", "--fix", "--record", "--update", "--in-place"),
    "--yes": ("--assume-yes", "--confirm", "--non-interactive"),
}
"""What one word means no other word does. These were used, or are what other tools say."""
FLAGS = ("--yes", "--fresh", "--dry-run", "--write")
VALUES = ("--env", "--out", "--format", "--releases", "--serve", "--log-file", "--source")
OPTIONS = [
    (name, command, option, text)
    for name, command in commands()
    for option, text in options_of(command)
]


@pytest.mark.parametrize(("name", "command"), [*commands()][1:])
def test_paragraphs_of_help_are_broken_by_the_terminal_only(name: str, command: Any) -> None:
    paragraphs = command.help.split("\n\n")
    assert [paragraph for paragraph in paragraphs if "\n" in paragraph] == []
    codes = [paragraph for paragraph in paragraphs if "Exit codes:" in paragraph]
    assert all(paragraph.startswith("Exit codes: 0 ") for paragraph in codes)


def test_every_option_has_one_meaning() -> None:
    """If the help of an option differs between commands, its meaning is registered in ``WORDS``."""
    texts: dict[str, set[str]] = {}
    for _, _, option, text in OPTIONS:
        assert text, option
        texts.setdefault(option, set()).add(text)
    assert {option for option, several in texts.items() if len(several) > 1} <= WORDS.keys()
    for shared in WORDS.keys() - texts.keys():
        assert shared == "--examples", "no command has it"


@pytest.mark.parametrize("word", SYNONYMS)
def test_no_other_word_means_the_same(word: str) -> None:
    used = {option for _, _, option, _ in OPTIONS}
    assert word in used
    assert used.isdisjoint(SYNONYMS[word]), f"say {word}"


def test_an_option_takes_a_value_everywhere_or_nowhere() -> None:
    kinds: dict[str, set[bool]] = {}
    for _, command, option, _ in OPTIONS:
        (parameter,) = [entry for entry in command.params if option in entry.opts]
        kinds.setdefault(option, set()).add(bool(parameter.is_flag or parameter.count))
    assert {option for option, several in kinds.items() if len(several) > 1} == set()
    assert [option for option in FLAGS if kinds[option] != {True}] == []
    assert [option for option in VALUES if kinds[option] != {False}] == []


def test_options_of_all_commands_are_not_repeated_in_one() -> None:
    program, *below = commands()
    everywhere = {name for option in program[1].params for name in option.opts}
    for name, command in below:
        own = {name for option in command.params for name in option.opts}
        assert own.isdisjoint(everywhere), name


def test_environments_are_not_positional() -> None:
    """Except as what ``env`` builds, locks and removes, and what ``serve`` serves."""
    for name, command in commands():
        if name.split(" ")[0] in ("env", "serve"):
            continue
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                assert "env" not in parameter.name, name


def test_there_are_not_too_many_options() -> None:
    assert sum(counts().values()) <= MOST_OPTIONS


def test_the_options_that_may_stand_anywhere_are_those_of_the_program() -> None:
    moved, _ = cli.split_arguments(
        ["list", "--cases", "a", "--source=b", "--wheel-index", "c", "--yes", "-vv", "--log-file=d"]
    )
    assert moved[-1] == "list"
    (_, program), *_ = commands()
    named = {word.partition("=")[0] for word in moved if word.startswith("--")}
    rest = {option for option, _ in options_of(program)} - named
    assert rest == {"--version", "--verbose"}
