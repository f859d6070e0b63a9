"""The commands of `lightlib experiment`."""
