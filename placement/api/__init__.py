"""The HTTP routes, one module a subject; all of them thin."""
