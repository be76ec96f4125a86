"""The forecast of ``pods``: what each pod is expected to use soon and in an hour, and how sure that is."""
