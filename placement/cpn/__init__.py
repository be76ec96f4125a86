"""The computing power network controller: GPU jobs of a queue go to cards of several clusters."""
