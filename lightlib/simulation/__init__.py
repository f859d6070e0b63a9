"""Memory and messages of a fit, counted without its devices; plans that compare strategies."""
