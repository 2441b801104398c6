"""Check whether lm-format-enforcer's own parser accepts a text. Runs in the target interpreter."""


def accepts(schema, text):
    """Return whether ``text`` is a complete value for ``schema``, as the one property of an object: early releases cannot end a number alone."""
    from lmformatenforcer import JsonSchemaParser

    parser = JsonSchemaParser({"type": "object", "properties": {"value": schema}, "required": ["value"]})
    for character in '{"value":' + text + "}":
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()
