"""What lightlib costs, measured against plain PyTorch and other frameworks: `python -m benchmarks`."""
