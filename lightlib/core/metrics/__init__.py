"""Logged values: reduced over steps and ranks, and handed to the loggers."""
