"""This machine: its slots, the processes and containers of trials, and the needs of trials."""
