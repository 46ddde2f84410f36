"""Looks at a data set before training does: what is in it, what is wrong with it, and what a model sees of it."""

from paceline.data.inspect.report import as_table, inspect_data

__all__ = ["as_table", "inspect_data"]
