"""Does a release still install and start with what the package index offers today, and which pin
restores it?"""
