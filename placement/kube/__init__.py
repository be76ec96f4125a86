"""The clusters that the service watches: nodes and pods as the API server has them, as columns for ``decide``."""
