"""jobs: a queue of GPU jobs on the cards of a computing power network."""
