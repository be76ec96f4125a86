"""Placement problems as environments: state, features, heuristics, bounds, traces and replay.

One folder a problem, one value each (``sched_env.problems``). ``sched_env.envs`` registers the Gymnasium ids; importing
the package alone imports nothing heavy.
"""
