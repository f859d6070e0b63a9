"""Less memory while a model trains."""
