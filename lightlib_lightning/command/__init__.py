"""`lightlib compat`: runs Lightning's projects, and finds their uses of Lightning by reading their files."""
