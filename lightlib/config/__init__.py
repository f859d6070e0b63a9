"""Internals of the command line: names, YAML files, help and errors of the configuration."""
