"""`lightlib compat`: runs Lightning's projects, and finds their uses of Lightning in their files."""
