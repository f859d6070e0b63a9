"""The Trainer's arguments, checked and made into objects."""
