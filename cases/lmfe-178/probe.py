"""lm-format-enforcer by itself: whether its parser takes a text. Runs in the target interpreter."""


def is_taken(schema, text):
    from lmformatenforcer import JsonSchemaParser

    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()
