"""Build the index of vLLM's fixes from a clone and the wheels: ``python -m tools.fixes``.

``changes`` reads commits, ``containment`` decides which release is the first with each, and
``differences`` compares releases that no history reaches.
"""
