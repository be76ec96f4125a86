"""Traces: the tables every problem replays, readers of public data sets, and synthetic generators."""
