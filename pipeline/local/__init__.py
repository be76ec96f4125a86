"""The whole loop on one machine: placement service, Airflow and one nightly run, for ``make run`` and the tests."""
