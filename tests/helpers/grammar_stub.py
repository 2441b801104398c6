"""Stub of the package lmformatenforcer: accepts JSON strings of the letters a and b, and fails in
the way the schema's title names."""

import os
import time


class JsonSchemaParser:
    def __init__(self, schema, text=""):
        self.schema, self.text = schema, text
        fault = schema.get("title")
        if fault == "hang":
            time.sleep(600)
        elif fault == "eat":
            self.held = [b"x" * 2**20 + bytes([n % 256]) for n in range(2000)]
            time.sleep(600)
        elif fault == "multiply":
            for _ in range(200):
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
            time.sleep(60)
        elif fault == "die":
            os.abort()
        elif fault == "no memory":
            raise MemoryError
        elif fault == "refuse":
            raise ValueError(f"cannot read {schema}")

    def get_allowed_characters(self):
        if self.text == '"' and self.schema.get("title") == "dead":
            return ""
        ended = len(self.text) > 1 and self.text.endswith('"')
        return "" if ended else '"' if not self.text or len(self.text) > 3 else 'ab"'

    def add_character(self, letter):
        return type(self)(
            {
                **self.schema,
                "title": self.schema.get("title") if self.schema.get("title") == "dead" else "",
            },
            self.text + letter,
        )

    def can_end(self):
        return len(self.text) > 1 and self.text.endswith('"')


class TokenEnforcerTokenizerData:
    def __init__(self, regular_tokens, decoder, eos_token_id):
        self.tokens, self.decoder, self.eos = regular_tokens, decoder, eos_token_id


class TokenEnforcer:
    def __init__(self, data, parser):
        self.data, self.parser, self.schema = data, parser, parser.schema

    def __getstate__(self):
        lost = (
            {"parser": JsonSchemaParser(self.schema, '"aaa')}
            if self.schema.get("title") == "lose"
            else {}
        )
        return {**self.__dict__, **lost}

    def get_allowed_tokens(self, taken):
        if self.schema.get("title") == "late crash" and taken:
            raise KeyError("state")
        parser = self.parser
        for letter in self.data.decoder(taken):
            parser = parser.add_character(letter)
        allowed = [
            number
            for number, text, _ in self.data.tokens
            if len(text) == 1 and text in parser.get_allowed_characters()
        ]
        return [*allowed, self.data.eos] if parser.can_end() else allowed
