"""Untrusted text is escaped in Markdown but stays readable; templates render without a cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.util.text import (
    markdown_block,
    markdown_cell,
    markdown_inline,
    render_text,
)

LIVE = (
    "@user",
    "@org/team",
    "#123",
    "owner/repo#1",
    "owner/repo@0123456",
    "0123456789abcdef0123456789abcdef01234567",
    "GH-12",
    "![x](http://evil.invalid/x.png)",
    "[x](http://evil.invalid)",
    "<!-- hidden",
    "<img src=x>",
    "https://evil.invalid",
    "www.evil.invalid",
    "a@b.invalid",
    "**bold**",
    ":tada:",
    "&#64;user",
    "a\n\n# heading",
    "- item",
    "```",
    "`` ` `` @user",
    "\\`@user\\`",
    "$x$",
)
TEXTS = st.lists(
    st.sampled_from([*LIVE, "`", "``", "|", "\\", "\\|", "word", "\u202e"]) | st.text(max_size=4),
    max_size=8,
)


def outside_code(markdown: str) -> str:
    """Return what is not in a code span: an opening row of backticks ends at the next row of the
    same length."""
    rest, outside = markdown, []
    while match := re.search("`+", rest):
        outside.append(rest[: match.start()])
        end = re.search(f"(?<!`){match[0]}(?!`)", rest[match.end() :])
        assert end, f"a code span without its end: {markdown}"
        rest = rest[match.end() + end.end() :]
    return "".join([*outside, rest])


def is_inert(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9 ,.;:()'/+=-]*", text) is not None and not re.search(
        r"\b[0-9a-f]{7,}\b", text, re.I
    )


@pytest.mark.parametrize("text", LIVE)
def test_text_with_an_effect_becomes_code(text: str) -> None:
    assert markdown_inline(text) != text
    for words in (text, f"before {text} after", f"{text} {text}"):
        assert is_inert(outside_code(markdown_inline(words)))


@pytest.mark.parametrize(
    "text", ["", "a plain title, with 2 words (and more): end", "vllm 0.8.5.post1", "it's so/so"]
)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert markdown_inline(text) == text


@given(TEXTS.map(" ".join) | TEXTS.map("".join) | st.text(alphabet="`|\\ @#a\n", max_size=30))
def test_nothing_leaves_the_code(text: str) -> None:
    assert is_inert(outside_code(markdown_inline(text)))
    assert "\n" not in markdown_inline(text)
    cell = markdown_cell(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", cell), "a separator that is not escaped"
    block = markdown_block(text)
    fence = re.match("`+", block)
    assert fence and block.endswith("\n" + fence[0])
    assert not re.search(f"^ *{fence[0]}", block[len(fence[0]) : -len(fence[0])], re.M)


def test_a_template_is_rendered_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, texts = tmp_path / "cache", tmp_path / "texts"
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(cache))
    texts.mkdir()
    (texts / "one.txt").write_text("{{ name }}")
    cache.mkdir(mode=0o700)
    (cache / "templates").touch()
    assert render_text("one.txt", texts, name="x") == "x"
