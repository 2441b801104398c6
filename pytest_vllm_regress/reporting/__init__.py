"""Results for people and machines: terminal table, Markdown, JUnit, the HTML page."""
