"""The watchdog: failures, stops and hangs, passed on between ranks."""
