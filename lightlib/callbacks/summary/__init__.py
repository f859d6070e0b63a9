"""The table of a model's layers, their parameters and memory."""
