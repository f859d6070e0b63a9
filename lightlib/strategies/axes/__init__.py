"""Axes of the mesh: one kind of parallelism each."""
