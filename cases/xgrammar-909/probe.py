"""Check whether xgrammar accepts given bytes in a JSON string."""

import os

from vllm_regress_target import Unsupported
from vllm_regress_target.grammars import Vocabulary, installed, load


def accepts(tokenizer: str, content: str) -> bool:
    """Whether the grammar of a list of strings accepts one string of these bytes. ``content``: hexadecimal digits."""
    if not installed("xgrammar"):
        raise Unsupported("xgrammar is not installed", needs="xgrammar")
    vocabulary = Vocabulary(os.path.join(tokenizer, "tokenizer.json"))
    walk = load("xgrammar", vocabulary).compile({"type": "array", "items": {"type": "string"}}).walk()
    for byte in b'["' + bytes.fromhex(content) + b'"]':
        token = vocabulary.tokens.index(bytes([byte]))
        if token not in walk.allowed():
            return False
        walk.advance(token)
    return vocabulary.eos in walk.allowed()
