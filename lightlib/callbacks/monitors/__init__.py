"""Watch the devices and the loss while a model trains."""
