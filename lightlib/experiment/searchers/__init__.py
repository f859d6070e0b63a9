"""Rules of a search: brackets of rungs, the decisions in a rung, a simulation, and a preview."""
