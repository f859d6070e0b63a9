"""How far a run is, and what is due next."""
