"""Fit the simulator to the cluster's own train windows; ``python -m pipeline.calibrate --problem functions``."""
