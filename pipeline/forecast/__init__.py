"""The forecast of ``pods``: what each pod is expected to use in the next window, where that can be foreseen."""
