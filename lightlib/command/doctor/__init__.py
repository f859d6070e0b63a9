"""`lightlib doctor`: what is installed, and what works."""
