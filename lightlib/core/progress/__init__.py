"""The position of a run, and the limits and intervals that decide its next action."""
