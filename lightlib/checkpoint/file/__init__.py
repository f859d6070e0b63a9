"""Checkpoints that are one file: records, checksums, pickles, safetensors."""
