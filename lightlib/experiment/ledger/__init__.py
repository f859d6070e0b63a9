"""The ledger: which trials there are, who runs them, and how they ended, in an Optuna study."""
