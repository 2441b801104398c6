"""Explain a log: which documented failures it shows, on which lines, and what to do about them.

``log.explain`` reads it once. ``log_lines`` selects the lines and says which versions they name,
``tracebacks`` reads the exceptions in them, ``case_patterns`` says which cases they show, and
``explanation`` decides how sure each documented failure is, and groups the others.
"""
