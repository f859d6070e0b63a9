"""Errors of configurations: the file, the line, what was expected."""
