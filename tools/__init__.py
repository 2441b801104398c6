"""Tools for those who maintain the project: records, generated pages, and measurements of the code."""
