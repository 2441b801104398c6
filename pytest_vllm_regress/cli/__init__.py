"""The command ``vllm-regress``.

Each command has a module with its name. Nothing else stands here, because these modules (``list``)
become names of this package.
"""

from .front_door import COMMANDS, LazyCommand, app, main, module_of, split_arguments

__all__ = ["COMMANDS", "LazyCommand", "app", "main", "module_of", "split_arguments"]
