"""Workflows: DAGs of functions placed on the priced nodes of ``functions``, one task at a time or as a whole."""
