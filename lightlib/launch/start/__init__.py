"""Starts the other processes of a run."""
