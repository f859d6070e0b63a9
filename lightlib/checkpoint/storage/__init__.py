"""Where files are: local disks and fsspec's stores, safe replacement, locks."""
