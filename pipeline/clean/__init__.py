"""The definition of cleaning, written once in Ibis: DuckDB runs it by default, Spark with ``clean.engine: spark``.

Raw rows become 5-minute windows in these steps, one module each: ``rules`` (which rows cannot be trusted, which can
be repaired), ``series`` (duplicates, resets, rates, statistics of a window), ``gaps`` (what is missing), then one
module a table. ``day`` runs them for one day and proves that no row was lost.
"""
