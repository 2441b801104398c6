"""Explain a log: which documented failures it shows, on which lines, and what to do about them.

``log.explain`` reads it once. ``log_lines`` selects the lines, ``tracebacks`` and
``named_versions`` say what is in them, ``case_patterns`` which cases they show, ``unknown`` groups
the failures without a case, and ``explanation`` decides how sure each documented failure is.
"""
