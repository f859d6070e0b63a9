"""Watch devices, loss, throughput, times, norms and metrics while a model trains."""
