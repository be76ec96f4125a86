"""Order of the whole suite."""


def pytest_collection_modifyitems(items):
    """Begin with what waits most (a real Airflow), so that the other worker has everything else to do meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("airflow") is None)
