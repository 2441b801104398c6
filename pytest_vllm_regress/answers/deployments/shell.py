"""Servers that commands of a shell start: words, variables, arrays, nested shells, containers."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from .branches import (
    MORE,
    Branches,
    Truth,
    Value,
    both_hold,
    common,
    either,
    either_holds,
    groups_of,
    inverted,
    is_in,
    named,
    truth_of,
)
from .findings import DEFAULT_OF_VARIABLE, UNSET, ServerCommand, Word, literal
from .shell_words import (
    ALL_ARGUMENTS,
    END,
    MAX_COMMAND,
    Known,
    expanded,
    signed_commands,
    split,
    with_arrays,
    without_blocks,
    without_functions,
)
from .workers import is_worker, settings_of_worker

MAX_WORDS = 5_000
"""Words of a command, after its arrays and variables are replaced."""
MAX_NESTED = 5
"""Depth of scripts inside scripts (``sh -c "..."``) and of containers inside containers."""

# Programs and images
_MODULE = re.compile(r"(?:.*/)?vllm[./]entrypoints[./](?:openai[./])?(?:api|grpc)_server(?:\.py)?")
_PYTHON = re.compile(r"(?:^|[/{_$])(?i:python)[\d.]*\}?$")
_PROGRAM_NAMES = ("vllm", "vllm.entrypoints.cli.main")
_OWN_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-\w+)*(?:[:@}]|$)")
_IMAGE = re.compile(
    r"(?:^|[/-])vllm(?:[-/:@}]|$)|(?i:[${][{\s]{0,9}(?:[\w.-]{0,99}[._])?vllm\w{0,99}[._]image)"
)
_HOLDS_OPTIONS = re.compile(r"(?i)(?:vllm|extra|engine|serve).*_(?:args|flags|opts|options)$")
"""A variable from which the entrypoint of an image takes options."""
_OTHER_IMAGE = re.compile(
    r"(?i)tritonserver|(?:bench\w*|client|gradio|rag|ui)[_-](?:[\w-]*[_-])?vllm|vllm[\w-]*[_-](?:router|bench\w*|tests?|sim|simulator|client|exporter|operator|proxy|gateway|ui|router\w*)\b"
)
_PROGRAM = re.compile(
    r"(?:.*/)?(?:(?:ba|da|z|k)?sh|python[\d.]*|sleep|tail|env|ray|tini|nvidia-smi|pip3?|\w+\.(?:sh|py))|/(?:usr/)?s?bin/.*"
)
"""The first word after an image that replaces its entrypoint, so that it starts no server."""
_START_SCRIPT = re.compile(
    r"(?:.*/)?(?!(?:[\w-]*[_-])?(?:ray|worker|bench|test|download|check|health|init|install|setup|build|stop|kill|wait|client|router"
    r"|proxy|gateway|ui|eval|train|batch|infer(?!ence)|offline|generat|rollout)(?:[a-z]*[_.-]|\w*\.))[\w-]*"
    r"(?:(?:start|serve|launch|run|entrypoint)[\w-]*\.(?:sh|py|sbatch|slurm|bash)|vllm[\w-]*entrypoint[\w-]*|entrypoint[\w-]*vllm[\w-]*)"
)
"""A script elsewhere that probably starts the server, if an image or its name says vLLM."""
_TELLING = re.compile(
    r"--(?:max-model-len|gpu-memory-utilization|enforce-eager|max-num-seqs|max-num-batched-tokens?|tool-call-parser"
    r"|enable-auto-tool-choice|enable-prefix-caching|enable-chunked-prefill|kv-transfer-config|max-seq-len-to-capture|swap-space)(?:=.*)?",
    re.DOTALL,
)
"""Options that hardly any other server has."""
_SERVES = re.compile(r"serve|start|launch|entrypoint|run[\w-]*\.sh")
_EMBEDS = re.compile(r"(?i)--(?:\w+[_-])?(?:backend|engine|runtime)[ =]vllm(?= |\Z)")
_LAUNCHES = re.compile(r"(?:.*[_-])?(?:serve|server|deploy|launch|api|start)")
"""Subcommands with which launchers start a server that has vLLM as its backend, and not a client."""
RUNS_SCRIPT = re.compile(
    r"(?:\S*/)?(?:env|tini|dumb-init|gosu|catatonit|(?:ba|da|z)?sh|python[\d.]*|nice|stdbuf)|-\S*|\w+=.*"
)
"""Words before the script that a command runs."""
_SUBMITS = ("sbatch", "srun", "salloc")
_OF_SERVER = re.compile(
    rf"{_TELLING.pattern}|--(?:served-model-name|tensor-parallel-size)(?:=.*)?", re.DOTALL
)
_PROGRAM_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
_ENGINES = ("docker", "podman", "nerdctl", "podman-hpc", "udocker")
_IMAGE_OPTION = re.compile(r"--(?:container-?)?image(?:-?name)?")
_ARGUMENTS_OPTION = re.compile(r"--(?:container-)?args?")
"""Options of clients of a cloud or cluster that start a container: ``gcloud``, ``runpodctl``, ``kubectl``."""
_RUNS_CONTAINER = re.compile(r"(?:create|run|(?:container|service) create|\S+ run)(?= |\Z)")
_ENGINE_VARIABLE = re.compile(
    r"(?i)(?:\$\{?|\{\{ *)\w*(?:docker|podman|runtime|engine)\w*(?: *\}\}|\}?)"
)
_IMAGE_RUNNERS = ("apptainer", "singularity")
_IMAGE_FILE = re.compile(r"(?:docker://)?(.*vllm[\w.:/-]*?)(?:_(v?\d[\w.]*?))?(?:\.sif)?")
_MODEL = re.compile(r"[\w.-]+/[\w.-]+")
_FLAGS = re.compile(
    r"-[ditP]+|-q|--(?:detach|interactive|tty|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable|quiet|replace)"
)
"""Options of ``docker run`` that take no value."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=(?!=).*", re.DOTALL)
_SPEAKS = re.compile(
    r"pkill|pgrep|grep|printf|(?:\w+_)?(?:echo|log|info|warn|warning|error|debug|print|die|fail|usage|msg|say|ok|success|header)(?:_\w+)?"
)
"""Commands whose words are texts, not commands."""
_SUBSTITUTED = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_PRINTED = re.compile(
    r"[\"']?\$\((?!.*--(?:version|help)\b)(.*\b(?:run|create|serve)\b.*)\)[\"']?", re.DOTALL
)
_DEFAULT = re.compile(r"\$\{(\w+):?=(.*)\}", re.DOTALL)
_RUNNERS = ("exec", "eval", "nohup", "setsid", "time", "sudo", "source", ".")
_SOURCES, _HARMLESS = ("source", "."), ("activate", ".bashrc", ".profile", "conda.sh")
_SETS = ("read", "mapfile", "readarray", "getopts", "printf", "let", "unset")
"""Commands that change variables, and files that change none of the script's."""
_ASSIGNS = (["export"], ["eval"])
_KEEPS = ("export", "declare", "local", "readonly", "docker", "podman", "env", "test")
"""Commands that change no list whose name they have as an argument."""
_NAMES = re.compile(r"(\w+)\+?=")
_ADDS = re.compile(r"(?:.*/)?(?:xargs|parallel)")
"""Commands that add what they read to the words of another one."""
_DECLARES = ("export", "declare", "local", "readonly", "set", "env")
_OPENS, _CLOSES = ("if", "case", "while", "until", "for", "select"), ("fi", "esac", "done")
_POSITIONS = ("@", *map(str, range(1, 10)))
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time")
MAX_BRANCHES = 50
"""Depth of ``if`` and loops in each other."""
MAX_IFS = 500
"""Most branches and sourced files of a script that are followed, since each copies the variables."""
MAX_ALTERNATIVES = 200
"""Most servers in one ``if`` that are compared with each other."""
MAX_CALLS = 10
"""Greatest depth of nested calls of functions."""
MAX_ARGUMENTS = 200
"""Most arguments of a call that are followed."""
MAX_WORK = 100_000
"""Most words that are read in the bodies of functions, over all of their calls."""
COST_OF_CALL = 200
"""Words by which each call is counted in addition to those of the body."""
_VARIABLES = ("$", "{{")
_MODEL_VARIABLE = re.compile(r"(?:VLLM_|LLM_)?MODEL(?:_?(?:NAME|ID|PATH))?\d?")
_KEY_AT_END = re.compile(r"(?:\\[nr]|\^M|\\015)+$")
"""What ``screen -X stuff`` sends after a command."""
_IN_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")


def of_script(
    text: str,
    line: int = 1,
    variables: Mapping[str, str] | None = None,
    depth: int = 0,
) -> Iterator[ServerCommand]:
    """Yield the servers that a script starts. A variable that has one value is replaced by it.

    ``variables``: of its environment.
    """
    script = _Script(variables or {}, depth)
    yield from script.read(split(without_blocks(text), line))
    if not script.found:
        yield from ([] if depth else script.kept()) or script.own.values()


class _Script:
    """The state of a script: its variables and functions, and the conditions around a command."""

    def __init__(self, variables: Mapping[str, str], depth: int) -> None:
        self.known: Known = {
            name: Word(value) for name, value in variables.items() if value != UNSET
        }
        self.exported = dict(variables)
        self._depth = depth
        self.own: dict[object, ServerCommand] = {}
        self._doubtful: Known = {}  # what a file that is sourced may have changed
        self._kept: dict[str, list[ServerCommand]] = {}
        self.found = 0
        self._functions: dict[str, list[Word]] = {}
        self._called: set[str] = set()
        self._work = 0
        self._running: list[str] = []
        self._outer = 0  # branches around the call that is followed now
        self._of_functions: set[tuple[object, ...]] = set()
        self._branches: list[Branches | None] = []
        self._count = 0
        self._sign = "\n"
        self._status: Truth = True
        self._likely: Truth = True  # the status if nobody has set a variable
        self._is_likely_now = False
        self._in_brackets = False

    def read(self, words: Sequence[Word]) -> Iterator[ServerCommand]:
        """Yield the servers of a whole script. A function is read where it is called, or at the end
        if nothing shows a call."""
        words, self._functions = without_functions(words)
        yield from self._run_all(words)
        for name in self._functions:
            if name not in self._called:
                yield from self._call(name, None)
        while self._branches:
            yield from self._close()

    def _run_all(self, words: Sequence[Word]) -> Iterator[ServerCommand]:
        tokens: list[Word] = []
        for word, items in with_arrays(words):
            if items is None:
                tokens.append(word)
            else:
                yield from self._run(tokens)
                tokens = []
                self._assign_array(word, items)
        yield from self._run(tokens)

    def _run(self, words: Sequence[Word]) -> Iterator[ServerCommand]:
        for before, command, after in signed_commands(words):
            self._sign = before
            yield from self._command(command, after)
        signs = list(takewhile(bool, (word.sign for word in reversed(words))))
        if words:  # a line may end after "&&"
            self._sign = next((sign for sign in signs if sign != "\n"), "\n" if signs else "")

    def _command(self, command: list[Word], after: str) -> Iterator[ServerCommand]:
        if (case := self._case()) is not None and command[0] != "esac":
            if self._sign == ";;" and case.patterns is None:
                self._next_branch()
                case.patterns = []
            if case.patterns is not None:
                self._read_pattern(case, command, after)
                return
        is_negated = False
        while command and command[0] in (*_KEYWORDS, *_OPENS, *_CLOSES) and not command[0].quoted:
            keyword, command = command[0], command[1:]
            is_negated = is_negated != (keyword == "!")
            if keyword in _OPENS:
                self._open(keyword, command)
            elif keyword in _CLOSES and self._branches:
                yield from self._close()
            elif keyword in ("else", "elif"):
                self._next_branch(is_else=keyword == "else")
            elif keyword in ("then", "do") and self._branches and (last := self._branches[-1]):
                is_told = keyword == "then" or self._status  # a loop may go on
                last.truth = self._status if is_told and not last.truth else last.truth
                last.is_likely = self._likely if keyword == "then" else None
                if not last.ends:
                    last.before = dict(self.known)  # the test may have assigned
            if keyword in ("for", "case", "select"):
                if keyword == "case" and (case := self._case()) and len(command) > 2:
                    self._read_pattern(case, command[2:], after)
                return
        if not command:
            return
        words = [word for part in command for word in expanded(part, self.known)][:MAX_WORDS]
        condition = self._condition
        yield from self._called_in(command, condition)
        is_test = self._note_status(command, words, is_negated)
        started = [] if is_test else list(servers(words, self.exported, self._depth))
        for server in started:
            yield from self._started(server)
        if not started and not is_test:
            for server in _own_program(words, dict(self.exported)):
                self.own.setdefault((server.label, server.words), server)
        if not started and words and words[0] in self._functions:
            yield from self._call(words[0], words[1:], condition)
        self._assign_all(words, condition)

    def _started(self, server: ServerCommand) -> Iterator[ServerCommand]:
        if self._running:  # a function may be called for the same server again
            key = (server.words, server.line, server.image)
            if key in self._of_functions:
                return
            self._of_functions.add(key)
        self.found += 1
        yield from self._outside([server])

    def _outside(self, started: Sequence[ServerCommand]) -> Iterator[ServerCommand]:
        """Yield servers now, or keep them if another branch may start others instead."""
        last = self._branches[-1] if self._branches else None
        if last is not None and not last.is_loop:
            last.servers[-1] += started
        else:
            yield from started

    # Functions

    def _called_in(self, command: Sequence[Word], condition: Truth) -> Iterator[ServerCommand]:
        """Yield the servers of functions whose output a command uses."""
        for part in command if self._functions else ():
            for match in _SUBSTITUTED.finditer(part):
                inner = split(match[1], part.line)
                words = [word for item in inner for word in expanded(item, self.known)]
                if words and words[0] in self._functions and self._work <= MAX_WORK:
                    before = dict(self.known)  # a shell of its own: nothing of it remains
                    yield from self._call(words[0], words[1:MAX_WORDS], condition)
                    self._kept = {name: self._kept_in(name) for name in self._kept}
                    self.known = before

    def _call(
        self, name: str, arguments: Sequence[Word] | None, condition: Truth = True
    ) -> Iterator[ServerCommand]:
        """Yield the servers of a function. ``arguments``: None if they are not known."""
        body, is_first = self._functions[name], name not in self._called
        self._work += 0 if is_first else len(body) + COST_OF_CALL
        is_deep = len(self._running) == MAX_CALLS or name in self._running
        if is_deep or (self._work > MAX_WORK and not is_first):
            return
        self._called.add(name)
        outer = {key: self.known.pop(key) for key in _POSITIONS if key in self.known}
        state = self._sign, self._status, self._outer
        self._set_arguments(arguments)
        self._running.append(name)
        if not condition:
            self._branches.append(Branches(dict(self.known), truth=condition))
        self._outer = len(self._branches)
        yield from self._run_all(body)
        while len(self._branches) > self._outer - (not condition):
            yield from self._close()
        self._running.pop()
        self._sign, self._status, self._outer = state
        self._set_arguments(None)
        self.known |= outer

    def _set_arguments(self, arguments: Sequence[Word] | None) -> None:
        for key in _POSITIONS:
            self.known.pop(key, None)
        if arguments is not None and len(arguments) <= MAX_ARGUMENTS:
            self.known["@"] = list(arguments)
            self.known |= zip(_POSITIONS[1:], arguments, strict=False)

    # Conditions

    def _case(self) -> Branches | None:
        """Return the ``case`` that is being read."""
        last = self._branches[-1] if self._branches else None
        return last if last is not None and last.subject is not None else None

    def _read_pattern(self, case: Branches, words: Sequence[Word], after: str) -> None:
        if case.patterns is None or case.subject is None:
            return
        case.patterns += words
        if after == ")":
            case.truth = is_in(case.subject, case.patterns, ChainMap(self._doubtful, self.known))
            case.has_else = case.has_else or "*" in case.patterns
            case.patterns = None

    def _open(self, keyword: str, command: Sequence[Word]) -> None:
        self._count += 1
        is_limited = len(self._branches) >= MAX_BRANCHES or self._count > MAX_IFS
        if is_limited or keyword in ("until", "select"):
            self._branches.append(None)
            return
        opened = Branches(dict(self.known), is_loop=keyword in ("for", "while"))
        if keyword == "case" and command:
            opened.subject, opened.patterns = command[0], []
        elif keyword == "for" and command:
            items = [item for word in command[2:] for item in expanded(word, self.known)]
            is_single = len(items) == 1 and not re.search(r"[{*]", items[0])
            self.known[command[0]] = items[0] if is_single else None
            is_known = bool(items) and not items[0].startswith("$")
            opened.truth = True if is_known else None
        self._branches.append(opened)

    def _next_branch(self, *, is_else: bool = False) -> None:
        self._count += 1
        if not self._branches or (branches := self._branches[-1]) is None:
            return
        if self._count > MAX_IFS:
            self.known = branches.after(self.known)
            self._branches[-1] = None
            return
        self.known = branches.next(self.known)
        branches.has_else = branches.has_else or is_else
        branches.truth = True if is_else else None

    def _close(self) -> Iterator[ServerCommand]:
        branches = self._branches.pop()
        if branches is None:
            return
        self.known = branches.after(self.known)
        yield from self._outside(_alternatives(branches.servers))

    def _note_status(
        self, command: Sequence[Word], words: Sequence[Word], is_negated: bool
    ) -> bool:
        """Record whether a command succeeds. Return whether it is a test in brackets."""
        goes_on = self._in_brackets and self._sign in ("&&", "||")
        closes = command[-1] in ("]", "]]")
        is_test = goes_on or command[0] == "[[" or (command[0] == "[" and closes)
        self._in_brackets = is_test and not closes
        truth, known = None, ChainMap(self._doubtful, self.known)
        likely: Truth = None
        if is_test or command[0] == "test":
            words_of_test = command[0 if goes_on else 1 : -1 if closes else None]
            truth = truth_of(words_of_test, known)
            likely = truth_of(words_of_test, self.known, by_default=True)
        elif len(command) == 1 and words and words[0] in ("true", "false", ":"):
            truth = truth_of(command, known)
        elif all(map(_ASSIGNMENT.fullmatch, words)) and not any("$(" in word for word in words):
            truth = True
        likely = truth if likely is None else likely
        if is_negated:
            truth, likely = inverted(truth), inverted(likely)
        if self._sign == "&&":
            truth, likely = both_hold(self._status, truth), both_hold(self._likely, likely)
        elif self._sign == "||":
            truth, likely = either_holds(self._status, truth), either_holds(self._likely, likely)
        self._is_likely_now = self._is_likely()
        self._status, self._likely = truth, likely
        return is_test

    @property
    def _condition(self) -> Truth:
        """Whether the current command is executed."""
        if None in self._branches:
            return None
        if self._sign in ("&&", "||"):
            return self._status if self._sign == "&&" else inverted(self._status)
        return True

    def _is_likely(self) -> bool:
        """Return whether a command after ``&&`` or ``||`` is executed by default."""
        if self._sign == "||":  # has_option --x || ARGS+=(--x)
            return not self._likely
        return self._sign == "&&" and self._likely is True

    # Variables

    def _assign_all(self, words: Sequence[Word], condition: Truth) -> None:
        start = next((n for n, w in enumerate(words) if not _ASSIGNMENT.fullmatch(w)), 0)
        if words[start:] and words[start] in _SETS:  # IFS=, read -ra NAMES
            words = words[start:]
        is_source = words and words[0] in _SOURCES and not words[-1].endswith(_HARMLESS)
        # Whatever a command prints is assigned: export $(cat .env)
        is_source = is_source or (words[:1] in _ASSIGNS and words[-1].startswith(("$", "-")))
        self._count += bool(is_source)
        if is_source and self._count <= MAX_IFS:
            self._doubtful |= dict.fromkeys(self.known)
            self.known |= {name: None for name, value in self.known.items() if not value}
        elif words and words[0] in _SETS:
            self.known |= dict.fromkeys(name for name in words[1:] if name in self.known)
        elif words[:2] == ["set", "--"]:
            self._set_arguments(words[2:] if condition else None)
        elif words and re.fullmatch(r"[\w-]+", words[0]) and words[0] not in _KEEPS:
            # By reference, or in a text that is evaluated.
            is_text = words[0] == "eval"
            named = _NAMES.findall(" ".join(words[1:])) if is_text else words[1:MAX_ARGUMENTS]
            self.known |= {name: None for name in named if _is_list(self.known.get(name))}
        elif words[:1] == [":"]:  # : "${NAME:=default}"
            for match in filter(None, map(_DEFAULT.fullmatch, words[1:])):
                if not self.known.get(match[1]):
                    value = f"${{{match[1]}:-{match[2]}}}"
                    self._assign(match[1], Word(value, words[0].line), condition)
        declares = words[0] if words and words[0] in _DECLARES else ""
        assigned = words[bool(declares) :]
        if words and words[0] == "shift":
            arguments = self.known.get("@")
            skipped = int(words[1]) if words[1:] and re.fullmatch(r"\d\d?", words[1]) else 1
            is_known = isinstance(arguments, list) and len(self._branches) == self._outer
            left = arguments[skipped:] if isinstance(arguments, list) else []
            self._set_arguments(left if is_known else None)
        elif all(map(_ASSIGNMENT.fullmatch, assigned)):
            for word in assigned:
                name, _, value = word.partition("=")
                self._assign(name, Word(value, word.line, word.quoted), condition)
                if declares == "export":
                    self.exported[name] = literal(value)

    def _assign(self, name: str, value: Word, condition: Truth) -> None:
        if name.endswith("+"):
            name = name[:-1]
            before = self.known.get(name)
            value = Word(f"{before if isinstance(before, Word) else ''}{value}", value.line)
        if "vllm" in value and re.search(r"\s", value) and self._depth < MAX_NESTED:
            self._keep(name, split(value, value.line))
        # What a command prints is not known.
        is_known = "\n" in value or "$(" not in f"{value}("  # which may be on other lines
        is_known = is_known and len(value) <= MAX_COMMAND
        self._set(name, value if is_known else None, condition)

    def _set(self, name: str, value: Value, condition: Truth) -> None:
        before = self.known.get(name)
        if condition:
            self._doubtful.pop(name, None)
        if condition is not False:
            merged = value if condition else either(before, value)
            self.known[name] = named(merged, value) if self._is_likely_now else merged

    def kept(self) -> list[ServerCommand]:
        """Return the servers of the last command that is stored in a variable, since it may be run
        in a way that is not visible."""
        name = next(reversed(self._kept), "")
        started = self._kept_in(name) if name else []
        return [replace(server, complete=False) for server in started[-1:]]

    def _kept_in(self, name: str) -> list[ServerCommand]:
        return self._starts(self._words_of(name)) or self._kept[name]

    def _words_of(self, name: str) -> list[Word]:
        value = self.known.get(name)
        return split(value, value.line) if isinstance(value, Word) else value or []

    def _keep(self, name: str, words: Sequence[Word]) -> None:
        if started := self._starts(words):
            self._kept[name] = started

    def _starts(self, words: Sequence[Word]) -> list[ServerCommand]:
        started = servers(words, self.exported, self._depth + 1)
        return [server for server in started if server.words]

    def _assign_array(self, word: Word, items: Sequence[Word]) -> None:
        name = word.rstrip("+=")
        before = self.known.get(name, [] if "+" in word else None)
        values = [value for item in items for value in expanded(item, self.known)]
        start = before if "+" in word and isinstance(before, list) else []
        if any("vllm" in value for value in values[:5]):
            self._keep(name, values)
        if not isinstance(self.known.get(name), list) and "+" in word:
            self.known[name] = start
        self._is_likely_now = self._is_likely()
        self._set(name, [*start, *values][:MAX_WORDS], self._condition)
        if name in self._kept and "+" in word:
            self._keep(name, self._words_of(name))


def _is_list(value: Value) -> bool:
    """Return whether a variable may hold options, or nothing yet."""
    return isinstance(value, list) or (
        isinstance(value, Word) and (not value or value.startswith("-"))
    )


def _alternatives(branches: Sequence[Sequence[ServerCommand]]) -> list[ServerCommand]:
    """Return the servers of the branches of an ``if``. Two of the same model are one, of which the
    options are known that both have."""
    if sum(map(len, branches)) > MAX_ALTERNATIVES:
        return [server for servers_of_branch in branches for server in servers_of_branch]
    found: list[ServerCommand] = []
    for servers_of_branch in branches:
        earlier = len(found)  # two of the same branch are both started
        for server in servers_of_branch:
            same = (n for n, other in enumerate(found[:earlier]) if _is_alternative(other, server))
            if (number := next(same, None)) is None:
                found.append(server)
            else:
                other = found[number]
                words = common(other.words, server.words)
                groups = dict.fromkeys((*groups_of(other.words), *groups_of(server.words)))
                same_groups = set(groups_of(words))
                more = (word for group in groups if group not in same_groups for word in group)
                found[number] = replace(
                    other,
                    words=tuple(words),
                    complete=other.complete and server.complete,
                    sometimes=(*other.sometimes, *more),
                )
    return found


def _model_in(words: Sequence[Word]) -> str:
    """Return the model that arguments name; empty if they name none."""
    groups = list(groups_of(words))
    given = (" ".join(group).partition("--model")[2] for group in groups)
    option = next((text for text in given if text.startswith((" ", "="))), "")
    alone = (group[0] for group in groups if not group[0].startswith("-"))
    return option[1:] or next((word for word in alone if word not in ALL_ARGUMENTS), "")


def _is_alternative(one: ServerCommand, other: ServerCommand) -> bool:
    groups, others = set(groups_of(one.words)), set(groups_of(other.words))
    if ("--headless" in one.words) != ("--headless" in other.words):
        return False
    if _model_in(one.words) != _model_in(other.words):
        return False
    return one.image == other.image and len(groups & others) * 2 > max(len(groups), len(others))


def servers(
    words: Sequence[Word], variables: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[ServerCommand]:
    """Yield the servers that a command starts, also through a shell or a container engine."""
    assigned = dict(variables or {})
    image = ""
    has_program = any(_program_ends(words, index) for index in range(len(words)))
    for index, word in enumerate(words if words and not _SPEAKS.fullmatch(words[0]) else ()):
        program = word.rpartition("/")[2]
        is_script = index > 0 and re.fullmatch(r"-\w*c", words[index - 1]) is not None
        if word.startswith("--container-image="):  # of SLURM
            image = word.partition("=")[2].removeprefix("docker://").replace("#", "/")
        is_assigned = _ASSIGNMENT.fullmatch(word) is not None and not is_script
        is_own = is_assigned and (
            words[0] in _DECLARES or all(map(_ASSIGNMENT.fullmatch, words[:index]))
        )
        if is_assigned:
            name, _, value = word.partition("=")
            assigned[name] = literal(value)
        if not is_own and re.search(r"\s", _IN_TEMPLATE.sub("", word)):
            # Python's own code may only look for the module.
            is_code = is_script and any(map(_PYTHON.search, words[: index - 1]))
            if (
                _may_serve(word)
                and depth < MAX_NESTED
                and not (is_code and "vllm serve" not in word)
            ):
                passed = words[index + 2 :] if is_script else ()  # after the name, $0
                script = _KEY_AT_END.sub("", word)
                for server in of_script(script, word.line, assigned, depth + 1):
                    # Without arguments it is rather the name of a process.
                    if is_script or server.words or server.image:
                        server = replace(server, image=server.image or image)
                        yield _with_arguments(server, passed)
        elif is_assigned:
            printed = _PRINTED.fullmatch(word.partition("=")[2])
            if printed and _may_serve(word) and depth < MAX_NESTED:  # the name of a container
                yield from of_script(printed[1], word.line, assigned, depth + 1)
        elif start := _program_ends(words, index):
            more = [Word(MORE, word.line)] if any(map(_ADDS.fullmatch, words[:index])) else []
            yield ServerCommand((*_to_end(words[start:]), *more), word.line, assigned, image)
            return
        elif (program in _ENGINES or _ENGINE_VARIABLE.fullmatch(program)) and (
            match := _RUNS_CONTAINER.match(" ".join(words[index + 1 : index + 3]))
        ):
            if depth < MAX_NESTED:
                arguments = _to_end(words[index + 2 + match[0].count(" ") :])
                yield from _of_container(arguments, assigned, depth + 1)
            return  # what follows are its words, read once
        elif not has_program and _PROGRAM_VARIABLE.fullmatch(word) and _serves(words, index):
            is_serve = words[index + 1] == "serve"
            arguments = _to_end(words[index + (2 if is_serve else 1) :])
            yield ServerCommand(arguments, word.line, assigned, image, is_certain=False)
            return
        elif program in _IMAGE_RUNNERS and (found := _image_file(words, index)):
            if "exec" in words[index + 1 : index + 3]:
                image = str(found[0])
                continue
            for server in of_image(found[0], _to_end(words[found[1] + 1 :]), assigned, depth=depth):
                yield replace(server, complete=server.complete and bool(server.words))
            return
    if not has_program and any(map(_IMAGE_OPTION.match, words)) and depth < MAX_NESTED:
        yield from _of_client(_to_end(words), assigned, depth + 1)


def _of_client(
    words: Sequence[Word], variables: Mapping[str, str], depth: int
) -> Iterator[ServerCommand]:
    """Yield the server of a container that a command-line client starts. The client takes the image as
    an option, and the arguments as an option or after ``--``."""
    image, arguments = Word(""), list[Word]()
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        value = value if equals else "".join(words[index + 1 : index + 2])
        if _IMAGE_OPTION.fullmatch(option):
            image = Word(value, word.line)
        elif _ARGUMENTS_OPTION.fullmatch(option):
            arguments += split(re.sub(",(?=-)", " ", value), word.line)
            if not equals:  # to the end, or one text
                arguments += words[index + 2 :]
                break
        elif word == "--":
            arguments += words[index + 1 :]
            break
    if is_image(image) and arguments:
        yield from of_image(image, arguments, variables, depth=depth)


def _program_ends(words: Sequence[Word], index: int) -> int:
    """Return the index of the first argument if a word is vLLM's program or module; 0 if it is not."""
    if _MODULE.fullmatch(words[index]):
        return index + 1
    program = DEFAULT_OF_VARIABLE.sub(r"\1", words[index]).rpartition("/")[2]
    is_program = program.partition("@")[0] in _PROGRAM_NAMES  # uvx vllm@0.9.1
    return index + 2 if is_program and words[index + 1 : index + 2] == ["serve"] else 0


def _embeds_vllm(words: Sequence[Word]) -> bool:
    """Return whether a command is a launcher's with ``--backend vllm``, ``--engine vllm`` or such."""
    named = list(takewhile(lambda word: not word.startswith("-"), words))
    text = DEFAULT_OF_VARIABLE.sub(r"\1", " ".join(_to_end(words)))
    is_client = re.search(r"bench|train|eval|test|client", " ".join(named)) is not None
    is_client = is_client or any(map(_SPEAKS.fullmatch, named[:1]))
    is_launcher = not is_client and any(map(_LAUNCHES.fullmatch, named[1:]))
    return is_launcher and _EMBEDS.search(text) is not None


def _own_program(words: Sequence[Word], variables: Mapping[str, str]) -> Iterator[ServerCommand]:
    """Yield the server of a script that is elsewhere: it is called after vLLM. Its options are known if
    vLLM's follow; it may add others. Or yield that of a launcher with options of its own."""
    if _embeds_vllm(words):
        yield ServerCommand((), words[0].line, variables, is_certain=False, complete=False)
        return
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if "vllm" in name and _START_SCRIPT.fullmatch(name) and _SERVES.search(name):
            options = _to_end(words[index + 1 :])
            has_model = any(re.match(r"--model(?:=|$)", option) for option in options)
            is_known = sum(map(_is_of_server, options)) + has_model > 1
            if is_known or _is_run(words, index):
                given = (
                    part.split("=", 1) for part in words[:index] if _ASSIGNMENT.fullmatch(part)
                )
                variables = {**variables, **{name: literal(value) for name, value in given}}
                yield ServerCommand(
                    options if is_known else (),
                    word.line,
                    variables,
                    label="" if is_known else str(word),
                    settings={} if is_known else model_of_variables(variables),
                    is_certain=False,
                    complete=False,
                )
            return


def _is_of_server(word: Word) -> bool:
    return _OF_SERVER.fullmatch(word) is not None


def _is_run(words: Sequence[Word], index: int) -> bool:
    """Return whether a script is what a command runs, not a file that it has as an argument."""
    before = [word for word in words[:index] if not word.startswith("-")]
    is_first = all(word in _RUNNERS or RUNS_SCRIPT.fullmatch(word) for word in before)
    return is_first or words[0] in _SUBMITS or RUNS_SCRIPT.fullmatch(before[-1]) is not None


def model_of_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the model that a script elsewhere takes from a variable, as a setting."""
    named = (text for name, text in variables.items() if _MODEL_VARIABLE.fullmatch(name))
    model = next(filter(None, named), "")
    return {"model": model} if model else {}


def is_telling(word: str) -> bool:
    """Return whether a word is an option that hardly any other server has."""
    return _TELLING.fullmatch(word.replace("_", "-")) is not None


def names_model(words: Sequence[Word]) -> bool:
    """Return whether arguments name a model. Without one it comes from elsewhere, and perhaps other
    options, too."""
    before = ["", *words]
    return any(
        re.match(r"--model(?:=|$)", word)
        or not (word.startswith("-") or re.fullmatch(r"-[^=]*", previous))
        for previous, word in zip(before, words, strict=False)
    )


def _may_serve(script: str) -> bool:
    return "vllm" in script or (script.startswith("$") and any(map(is_telling, script.split())))


def _serves(words: Sequence[Word], index: int) -> bool:
    """Return whether the variable at the beginning of a command holds vLLM's program, judged by what
    follows."""
    starts = all(map(_ASSIGNMENT.fullmatch, words[:index])) or words[index - 1] in _RUNNERS
    following = words[index + 1 : index + 2]
    is_other = re.search(r"(?i)bench|test|client|eval|python", words[index]) is not None
    if not starts or is_other or not following or following[0].endswith((".py", ".sh")):
        return False
    named = following[0] == "serve" and "vllm" in words[index].lower()
    return named or any(map(is_telling, words[index + 1 :]))


def _with_arguments(server: ServerCommand, passed: Sequence[Word]) -> ServerCommand:
    """Return a server with the arguments of the script around it for ``"$@"``."""
    if not passed or not any(word in ALL_ARGUMENTS for word in server.words):
        return server
    words = [p for w in server.words for p in (passed if w in ALL_ARGUMENTS else [w])]
    return replace(server, words=tuple(words[:MAX_WORDS]))


def _image_file(words: Sequence[Word], start: int) -> tuple[Word, int] | None:
    """Return the image that Apptainer runs, with the name that it has as a container's, and its
    place."""
    if not {"run", "exec"} & set(words[start + 1 : start + 3]):
        return None
    for index, word in enumerate(words[start:], start):
        word = Word(DEFAULT_OF_VARIABLE.sub(r"\1", word), word.line)
        match = _IMAGE_FILE.fullmatch(word)
        if match and (word.endswith(".sif") or word.startswith("docker://")):
            name = f"{match[1]}:{match[2]}" if match[2] else match[1]
            return Word(name, word.line), index
    return None


def _of_container(
    words: Sequence[Word], variables: Mapping[str, str], depth: int
) -> Iterator[ServerCommand]:
    """Yield the servers of the words after ``docker run``: options, an image, and its arguments."""
    assigned = dict(variables)
    entrypoint: list[Word] = []
    label = ""
    at = 0
    while at < len(words) and (words[at].startswith("-") or _holds_options(words[at])):
        word = words[at]
        option, equals, value = word.partition("=")
        takes_next = word.startswith("-") and not equals and not _FLAGS.fullmatch(option)
        if takes_next and not any(map(_OWN_IMAGE.search, words[at + 1 : at + 2])):
            at += 1
            value = words[at] if at < len(words) else ""
        if option in ("-e", "--env"):
            name, equals, text = value.partition("=")
            assigned[name] = literal(text) if equals else UNSET
        elif option == "--entrypoint":
            entrypoint = [Word(value, word.line)]
        elif option == "--name":
            label = value
        at += 1
    if at < len(words):
        yield from of_image(words[at], words[at + 1 :], assigned, entrypoint, depth, label)


def _holds_options(word: Word) -> bool:
    """Return whether a bare variable before the image holds more options of the engine."""
    return (
        re.fullmatch(
            r"(?is)\$\{?\w*(?:arg|opt|flag|extra|mount|volume|env|gpu)\w*\}?|\$\{\w+:?\+ *-.*\}",
            word,
        )
        is not None
    )


def of_image(
    image: Word,
    words: Sequence[Word],
    variables: Mapping[str, str],
    entrypoint: Sequence[Word] = (),
    depth: int = 0,
    label: str = "",
) -> Iterator[ServerCommand]:
    """Yield the servers of a container: those that its words start, or else the image's own.

    ``label``: the name of the container, which counts if a variable has that of the image.
    """
    command = [*entrypoint, *words]
    started = list(servers(command, variables, depth))
    first = words[0] if words else Word("-", image.line)
    is_own, is_vllm = _OWN_IMAGE.search(image) is not None, is_image(image)
    names_model = _MODEL.fullmatch(first) and any(word.startswith("--") for word in words[1:2])
    runs_server = first.startswith("-") or first == "serve"
    runs_server = runs_server or (is_own and not _PROGRAM.fullmatch(first))
    runs_server = runs_server or names_model is not None
    if image.startswith(_VARIABLES):
        is_vllm = is_vllm or is_called_vllm(label) or any(map(is_telling, words))
    is_open = is_vllm and first.startswith(_VARIABLES) and not is_own  # a variable of any words
    if not started and starts_elsewhere(command, is_vllm):
        started = [ServerCommand((), first.line, variables, is_certain=False, complete=False)]
    elif not started and not entrypoint and (runs_server or is_open) and is_vllm:
        arguments = _to_end(words[1:] if first == "serve" else words)
        started = [
            ServerCommand(
                arguments, first.line, variables, is_certain=is_own, complete=is_own or bool(words)
            )
        ]
    # A script that is the entrypoint may add options to the command that it is given.
    is_open = is_open or any(word.endswith(".sh") for word in command[:1])
    is_open = is_open or (not is_own and any(map(_HOLDS_OPTIONS.search, variables)))
    settings = settings_of_worker(variables) if is_worker(image) else {}
    is_open = is_open or is_worker(image)
    yield from (
        replace(
            server,
            image=str(image),
            settings={**settings, **server.settings},
            complete=server.complete and not is_open,
        )
        for server in started
    )


def is_image(image: str) -> bool:
    """Return whether the name of an image says that it serves with vLLM."""
    return _IMAGE.search(image) is not None and not _OTHER_IMAGE.search(image)


def is_called_vllm(label: str) -> bool:
    """Return whether a container, whose image is not known, has the name of a server of vLLM's."""
    return re.fullmatch(r"(?i)vllm(?:[-_]?(?:server|openai|api|\$.*))?", label) is not None


def starts_elsewhere(words: Sequence[Word], is_vllm: bool) -> bool:
    """Return whether a command runs a script, which is not in the file, that probably starts the
    server, or a launcher of vLLM."""
    scripts = [part for word in words for part in word.split()]
    return _embeds_vllm(words) or any(
        _START_SCRIPT.fullmatch(part) and (is_vllm or "vllm" in part.rpartition("/")[2])
        for part in scripts[:50]
    )


def is_own_image(image: str) -> bool:
    return _OWN_IMAGE.search(image) is not None


def _to_end(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words before the end of a command; a list in YAML has it as a word."""
    return tuple(takewhile(lambda word: word not in ("&&", END, "|", "||", "&"), words))
