"""The cost of lightlib next to plain PyTorch and other frameworks: `python -m benchmarks`."""
