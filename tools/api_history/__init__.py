"""Build the history of vLLM's API from wheels: ``python -m tools.api_history``.

Sources are parsed; nothing is imported. Each module reads a part: ``modules`` the symbols of one
module, ``service`` options, variables, routes and the like, ``snapshot`` all of one release,
``growing`` appends a release to the history, ``known_arguments`` derives what the target
interpreter knows.
"""
