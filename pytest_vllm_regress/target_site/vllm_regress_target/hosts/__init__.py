"""The roles of a child process: an engine, a server, or the grammars of a structured-output package."""
