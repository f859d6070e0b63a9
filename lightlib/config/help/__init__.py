"""The help of the command line."""
