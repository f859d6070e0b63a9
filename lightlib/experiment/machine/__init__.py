"""This machine: its slots, the processes of trials with or without a container, and the needs of trials."""
