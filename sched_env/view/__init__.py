"""The replay page: one or two recorded runs, or the live service's decisions, side by side in a browser."""
