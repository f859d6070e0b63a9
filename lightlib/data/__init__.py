"""Data loaders: sharded over processes, resumed at the sample, seeded by it."""
