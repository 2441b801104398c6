"""What upstream has fixed: changes of vLLM that may be the fix of a failure that no case documents.

``index`` reads what ``python -m tools.fixes`` builds from a clone, ``ranking`` finds the changes
that speak of a failure, ``suggestions`` is what commands ask.
"""
