"""`lightlib plot`: curves of a run's logs."""
