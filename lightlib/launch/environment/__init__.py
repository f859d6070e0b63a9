"""Where this process runs: launchers, clusters, addresses."""
