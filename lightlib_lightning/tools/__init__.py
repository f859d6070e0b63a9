"""Lightning's smaller functions and classes, by subject; they are imported on use."""
