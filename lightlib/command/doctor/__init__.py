"""`lightlib doctor` and `lightlib env`: facts about this machine, and checks."""
