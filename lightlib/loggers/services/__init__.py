"""Loggers of services, called in the background: a slow or unreachable one does not hold up training."""
