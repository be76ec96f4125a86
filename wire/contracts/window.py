"""The length of a window: what cleaning cuts time into, what pods are moved after, what everything measured is of."""

WINDOW_SECONDS = 300
