"""Structured-output backends checked by themselves: drawn schemas, oracles, a search that shrinks, artefacts that replay."""
