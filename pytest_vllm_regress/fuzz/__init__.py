"""Fuzzing of structured-output backends: drawn schemas, an oracle, a search that shrinks failures,
and artefacts to replay."""
