"""Averages of the weights over the steps or epochs of a run."""
