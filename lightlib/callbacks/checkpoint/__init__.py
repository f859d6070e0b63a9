"""ModelCheckpoint and its parts: names, folders, the best files, removal."""
