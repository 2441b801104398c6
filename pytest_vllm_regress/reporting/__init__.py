"""Output formats of results: terminal table, Markdown, JUnit XML and an HTML page."""
