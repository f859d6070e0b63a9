"""The report: one page about an experiment, from its ledger and its folder."""
