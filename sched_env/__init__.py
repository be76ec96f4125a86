"""Placement problems as environments: state, features, heuristics, bounds, traces and replay."""
