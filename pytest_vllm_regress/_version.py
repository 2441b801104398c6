"""The version of the package, for modules that write it into files: no module of the package
imports the package itself."""

__version__ = "0.1.0"
