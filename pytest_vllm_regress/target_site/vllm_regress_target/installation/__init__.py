"""Checks of an installation, called in it by their file: does it import and start, and has it what a project uses?"""
