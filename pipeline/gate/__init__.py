"""The gate's parts: rules as settings, episodes, comparisons, verdict and renderers. ``pipeline.gate`` is the door."""
