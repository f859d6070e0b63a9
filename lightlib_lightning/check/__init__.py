"""Finds what a project uses of Lightning and how it runs here, by reading its files."""
