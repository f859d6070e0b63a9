"""A run: the loop, the parts it works on, and the hooks it calls."""
