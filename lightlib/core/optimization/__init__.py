"""Optimizers, schedules, and the accumulation window."""
