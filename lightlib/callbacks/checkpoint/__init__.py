"""ModelCheckpoint and what it is made of: names, folders, the best ones, removal."""
