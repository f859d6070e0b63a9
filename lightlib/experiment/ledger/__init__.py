"""The ledger: the trials of an experiment, their owners and their ends, in an Optuna study."""
