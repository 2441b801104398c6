"""Check whether lm-format-enforcer's own parser accepts a text. Runs in the target interpreter."""


def accepts(schema, text):
    from lmformatenforcer import JsonSchemaParser

    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()
