"""Contracts inside the pipeline: window tables, evaluation episodes, gate report and promotion record."""
