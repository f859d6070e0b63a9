"""The watchdog: propagates failures, stops and hangs between ranks."""
