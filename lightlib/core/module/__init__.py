"""Module and DataModule: hooks, hyperparameters, loading, export."""
