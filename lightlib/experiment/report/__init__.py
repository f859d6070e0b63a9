"""The report: one page about an experiment, from its ledger and its folder."""

from lightlib.experiment.report.page import MARK, write_report

__all__ = ["MARK", "write_report"]
