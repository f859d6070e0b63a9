"""Records of the metrics of a run: kept in memory with windows, and printed."""
