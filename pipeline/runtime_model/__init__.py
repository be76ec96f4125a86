"""The runtime model of ``jobs``: how long jobs that share a card take, before they run."""
