"""Errors of configurations: the file, the line, the expected value and the fix."""
