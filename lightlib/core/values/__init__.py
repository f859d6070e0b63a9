"""Values of the user's objects: compared, encoded, restored."""
