"""The roles of a child process: an engine, a server, or the grammars of a structured-output
package; and the parsers that a probe process asks."""
