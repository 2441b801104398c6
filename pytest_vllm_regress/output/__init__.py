"""Results for people and other programs: terminal table, Markdown, JUnit XML, HTML pages, and cases
as scripts and records."""
