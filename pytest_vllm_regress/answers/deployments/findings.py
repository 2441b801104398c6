"""What a reader finds in a file: servers of vLLM, names, releases that it installs; each with its
line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNSET = "?"
"""The value of an option that the file leaves to a variable, or that an unknown option may mean."""
DEFAULT_OF_VARIABLE = re.compile(r"\$\{\w+:?[-=]([^{}$]*)\}")
_TAG = re.compile(
    r"(?<![\w.-])[\w.:/-]*?(?:(?<![\w-])vllm/)?"
    r"(?<![\w.-])(?P<name>vllm(?:-openai)?(?:-(?:cpu|gpu|cuda|rocm|tpu|xpu|arm64|neuron))?(?:-release-repo)?)"
    r":(?:[\w.-]*vllm[_-])?v?(?P<release>0\.\d+\.\d+(?:\.post\d+)?(?:\.\d+)?)(?![\w]*\d*\.\d)"
)
"""An image whose tag is vLLM's version: vLLM's own, and those of others that keep name and tag
(Amazon's, AMD's ``rocm6.4.1_vllm_0.10.0``, AIBrix's ``v0.9.2-cu128``)."""
_OWN_TAG = re.compile(
    r"(?<![\w.-])vllm/vllm-openai(?:-\w+)*:v?(\d+(?:\.\d+)+(?:\.post\d+)?)(?![\w.])"
)
_OTHER_TAGS = re.compile(r"lmcache/|vllm-ascend|^nvcr\.io/")
"""Images with the name of vLLM's whose tags are versions of another product."""
_CPU = re.compile(r"(?:^|[/-])vllm[\w-]*-cpu|:[\w.-]*cpu")


def literal(value: str) -> str:
    """Return ``value``, or ``UNSET`` if a variable or a template decides it."""
    return UNSET if re.search(r"\$|\{\{|\{\w+\}|%\(\w+\)s|__[A-Z][A-Z0-9_]*__", value) else value


def release_of_image(image: str) -> str:
    """Return the version of vLLM in the tag of an image; empty if there is none."""
    image = DEFAULT_OF_VARIABLE.sub(r"\1", image)
    if own := _OWN_TAG.search(image):
        return own[1]
    match = None if _OTHER_TAGS.search(image) else _TAG.search(image)
    return match["release"] if match else ""


class Word(str):
    """A word of a command and its line. ``quoted``: it is one word whatever its variables hold.

    ``sign``: what ends a command, if the word is such a sign.
    """

    def __new__(cls, text: str, line: int = 1, quoted: bool = False, sign: str = "") -> Word:
        word = super().__new__(cls, text)
        word.line, word.quoted, word.sign = line, quoted, sign
        return word

    line: int
    quoted: bool
    sign: str


@dataclass(frozen=True)
class ServerCommand:
    """A start of the server. ``words``: its arguments, with the model.

    ``settings``: options that the file gives as keys, by these keys.
    ``label``: the name of the container. ``is_certain``: the program or vLLM's own image is named;
    otherwise only the name of another image or of a backend says that it is vLLM. ``at_build``: a
    step that builds an image runs it. ``complete``: no template, script or key that was not
    understood may add options. ``of_chart``: the file has the values of a chart, whose
    template may add options. ``sometimes``: what only one branch of a script has.
    """

    words: tuple[Word, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    image: str = ""
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    is_certain: bool = True
    at_build: bool = False
    complete: bool = True
    of_chart: bool = False
    sometimes: tuple[Word, ...] = ()

    @property
    def release(self) -> str:
        """The version in the tag of the image; empty if there is none."""
        return release_of_image(self.image)

    @property
    def is_for_cpu(self) -> bool:
        """Whether the image has vLLM's build for processors."""
        return _CPU.search(self.image) is not None


@dataclass(frozen=True)
class Mention:
    """A name in the text that may be one of vLLM's: of a variable ("environment"), a "metric" or a
    "route"."""

    kind: str
    name: str
    line: int


@dataclass(frozen=True)
class Pin:
    """Releases that the file installs, or names as an image; empty for an image of vLLM's whose tag
    is no version."""

    specifier: str
    line: int


@dataclass(frozen=True)
class Unreadable:
    """The text is not what its name says. The other findings are what could be read anyway."""

    reason: str


DeploymentFinding = ServerCommand | Mention | Pin | Unreadable
