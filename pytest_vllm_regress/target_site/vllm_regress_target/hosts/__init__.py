"""What a child does for the controller: an engine, a server, the automata of a structured-output package."""
