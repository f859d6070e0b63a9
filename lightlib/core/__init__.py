"""The run: from the user's module to the order of events."""
