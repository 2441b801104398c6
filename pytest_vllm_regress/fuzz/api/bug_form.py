"""A finding as the text of vLLM's bug-report form."""

from __future__ import annotations

from collections.abc import Mapping

from ...util.text import markdown_block, markdown_inline
from ..finding import ReplayAnswer
from .api_hunter import ApiFinding
from .api_oracle import ApiOutcome

_EXPECTED: Mapping[str, str] = {
    ApiOutcome.SERVER_ERROR: "A request that cannot be served is refused with a 4xx status that says which field is wrong.",
    ApiOutcome.REFUSED_BY_CLIENT: "The answer has the form that the client's own types describe.",
    ApiOutcome.NO_END_MARKER: "The stream ends with its end marker.",
}
_ALIVE = "The request is answered or refused, and the server goes on to answer others."


def bug_form(finding: ApiFinding) -> str:
    """Return title and sections of the form, filled."""
    versions = "\n".join(f"{name} {version}" for name, version in finding.versions.items())
    failing = [
        release
        for release, answer in finding.releases.items()
        if answer == ReplayAnswer.STILL_FAILS
    ]
    sound = [
        release for release, answer in finding.releases.items() if answer == ReplayAnswer.FIXED
    ]
    tried = [
        f"Fails in {', '.join(failing)}." if failing else "",
        f"Does not fail in {', '.join(sound)}." if sound else "",
    ]
    words = "; ".join(finding.upstream.words)
    parts = [
        f"Title: [Bug]: {_title(finding)}",
        "### Your current environment",
        markdown_block(versions),
        "### Describe the bug",
        "Start a server. The weights do not matter: it was seen with a tiny random model.",
        markdown_block(finding.server_options),
        "Send",
        markdown_block(finding.question.curl()),
        f"What happens: {markdown_inline(finding.problem.words)}",
        *(
            ["vLLM's own calls, the last one innermost:", markdown_block(finding.problem.traceback)]
            if finding.problem.traceback
            else []
        ),
        f"What should happen: {_EXPECTED.get(finding.problem.kind, _ALIVE)}",
        *filter(None, tried),
        "### Before submitting a new issue",
        f"Searched for: {words}. {'Similar: ' + ', '.join(finding.upstream.reports) if finding.upstream.reports else 'Nothing found'}."
        if words
        else "Not searched yet.",
    ]
    return "\n\n".join(parts) + "\n"


def _title(finding: ApiFinding) -> str:
    """Return one line that names route, problem and cause."""
    return f"{finding.question.method} {finding.question.route}: {finding.problem.kind}: {finding.problem.key}"[
        :200
    ]
