"""`python -m lightlib.checkpoint`: inspect, verify and convert checkpoints."""
