"""Command: what the console command `lightlib` does, a file for each verb."""
