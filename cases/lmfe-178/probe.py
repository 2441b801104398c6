"""Check whether lm-format-enforcer's own parser accepts a text. Runs in the target interpreter."""

import importlib.util

from vllm_regress_target import Unsupported


def accepts(schema, text):
    """Return whether ``text`` is a complete value for ``schema``, as the one property of an object: early releases cannot end a number alone."""
    if importlib.util.find_spec("lmformatenforcer") is None:
        raise Unsupported("lm-format-enforcer is not installed", needs="lm-format-enforcer")
    from lmformatenforcer import JsonSchemaParser

    parser = JsonSchemaParser({"type": "object", "properties": {"value": schema}, "required": ["value"]})
    for character in '{"value":' + text + "}":
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()
