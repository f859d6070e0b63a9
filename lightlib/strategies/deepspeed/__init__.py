"""DeepSpeed's engine as a strategy."""
