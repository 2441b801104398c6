"""Upstream's own tests on our servers and engines: drop-in classes, the sources of the tests, their
run and their triage."""
