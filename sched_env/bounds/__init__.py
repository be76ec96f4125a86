"""Bounds: what no policy can pass, so that a score means something. One module a problem; scipy is imported lazily."""
