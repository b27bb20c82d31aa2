"""The report: run files in, one self-contained page out, with figures, tables and every episode step by step."""

from mempo_agents.report.page import write_report

__all__ = ["write_report"]
