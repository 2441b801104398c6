"""Build the documentation site with Sphinx: ``python -m tools.documentation [OUT]`` (``tox run -e
docs``). Warnings, such as links to pages or headings that do not exist, are errors.

The site has the pages below ``docs``, those at the root of the project and the READMEs of the cases,
at the same relative places, so that their links hold. Its navigation is the list in
``docs/README.md``; each command gets a page made from its help. Beside it, in ``overview``, is the
site of the cases; the two link to each other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.output.pages.site import write_site
from tools.options import commands

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\((?!https?:)([^)#]+\.md)\)")
_SETTINGS = """
project = "pytest-vllm-regress"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = "pytest-vllm-regress"
html_static_path = []
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "overview.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}
root_doc = "index"
nitpicky = True
myst_heading_anchors = 5
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
# `console` blocks show other programs' output, too.
suppress_warnings = ["misc.highlighting_failure"]
"""
_OVERVIEW = """<div class="sidebar-tree"><ul><li class="toctree-l1">
<a class="reference" href="{{ pathto('overview/index.html', 1) }}">All cases by release</a>
</li></ul></div>
"""


def copy_pages(source: Path) -> None:
    """Copy the project's Markdown, with pictures and files that it links to, below ``source``."""
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "cases").glob("*/README.md"),
    ]
    for page in pages:
        place = source / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_without_outside_links(page), encoding="utf-8")
    for picture in (*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")):
        shutil.copy(picture, source / "docs")


def _without_outside_links(page: Path) -> str:
    """Return a page's text, in which links to what is no page of the site are plain text."""

    def replaced(link: re.Match[str]) -> str:
        target = (page.parent / link[2].partition("#")[0]).resolve()
        is_page = target.suffix in (".md", ".png", ".svg") and target.is_relative_to(ROOT)
        return link[0] if is_page or not link[2].partition("#")[0] else link[1]

    text = page.read_text(encoding="utf-8")
    return re.sub(r"(?<!!)\[([^\]\n]+)\]\((?!https?:|mailto:)([^)\s]*)\)", replaced, text)


def navigation(text: str, folder: str) -> Iterator[str]:
    """Yield a table of contents for each section of ``docs/README.md``, hidden from the page."""
    _, *parts = _SECTION.split(text)
    seen: set[str] = set()
    for caption, body in zip(parts[::2], parts[1::2], strict=True):
        pages = [page for page in dict.fromkeys(_PAGE.findall(body)) if page not in seen]
        seen.update(pages)
        places = [str((Path("/") / folder / page).resolve()).removesuffix(".md") for page in pages]
        yield "\n".join(
            ("```{toctree}", ":hidden:", f":caption: {caption}", "", *places, "```", "")
        )


def command_page(name: str, command: Any) -> str:
    """Return the page of a command: its help, arguments and options."""
    rows: dict[str, list[str]] = {"argument": [], "option": []}
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        names = ", ".join(f"`{name if is_option else name.upper()}`" for name in parameter.opts)
        help_text = " ".join((getattr(parameter, "help", "") or "").split())
        rows[parameter.param_type_name].append(f"| {names} | {_cell(help_text)} |")
    text = "\n\n".join(filter(None, (_prose(command.help), _prose(command.epilog))))
    tables = [
        "\n".join((f"| {kind} | meaning |", "| --- | --- |", *lines))
        for kind, lines in rows.items()
        if lines
    ]
    usage = f"```text\nvllm-regress {name} {' '.join(command.collect_usage_pieces(typer.Context(command)))}\n```"
    return "\n\n".join((f"# {name}", text, usage, *tables)) + "\n"


def _prose(text: str | None) -> str:
    paragraphs = (text or "").split("\f")[0].replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()).replace("<", "&lt;") for paragraph in paragraphs)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def write_source(source: Path) -> None:
    """Write everything that Sphinx reads below ``source``."""
    copy_pages(source)
    folder = source / "docs" / "reference" / "commands"
    folder.mkdir()
    names: list[str] = []
    for name, command in commands():
        if name:
            page = name.replace(" ", "-")
            names.append(f"commands/{page}")
            (folder / f"{page}.md").write_text(command_page(name, command), encoding="utf-8")
    summary = source / "docs" / "reference" / "commands.md"
    text = re.sub(r"(?m)^\| `([a-z]+)` \|", r"| [\1](commands/\1.md) |", summary.read_text())
    listing = "\n".join(("```{toctree}", ":hidden:", "", *names, "```"))
    summary.write_text(f"{text}\n{listing}\n", encoding="utf-8")
    contents = "\n".join(navigation((ROOT / "docs" / "README.md").read_text(), "docs"))
    index = (source / "README.md").read_text(encoding="utf-8")
    (source / "index.md").write_text(f"{index}\n{contents}", encoding="utf-8")
    for linked in (source / "README.md", source / "docs" / "README.md"):  # links lead there
        linked.write_text(f"---\norphan: true\n---\n{linked.read_text(encoding='utf-8')}", "utf-8")
    cases = "\n".join(
        ("```{toctree}", ":glob:", ":caption: Cases", ":hidden:", "", "cases/*/README", "```")
    )
    (source / "cases.md").write_text(f"---\norphan: true\n---\n# Cases\n\n{cases}\n")
    (source / "conf.py").write_text(_SETTINGS)
    (source / "_templates").mkdir()
    (source / "_templates" / "overview.html").write_text(_OVERVIEW)


def main(
    out: Annotated[Path, typer.Argument(help="Folder of the site.")] = ROOT / "build" / "docs",
) -> None:
    """Build the documentation site with Sphinx, and the site of the cases in it."""
    source = out.with_name(f"{out.name}-source")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    write_source(source)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    if status := subprocess.run([*command, str(source), str(out)], check=False).returncode:
        raise typer.Exit(status)
    cases = load_all_cases(ROOT / "cases")
    write_site(out / "overview", cases, ROOT / "locks", ROOT, manual="../index.html")


if __name__ == "__main__":
    typer.run(main)
