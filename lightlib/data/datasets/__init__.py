"""Data sets made of several: mixtures by weight, and documents packed to one length."""
