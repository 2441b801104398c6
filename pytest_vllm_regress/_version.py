"""The version of the package, for what writes it into files: the package itself offers more, and nobody inside imports that."""

__version__ = "0.1.0"
