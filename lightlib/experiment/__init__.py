"""Experiments: hyperparameter search whose trials are fits."""
