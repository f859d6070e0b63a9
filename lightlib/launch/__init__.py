"""Launch: where the processes of a run come from, and what they tell each other."""
