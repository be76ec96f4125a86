"""Statistics of the gate and of canaries: numpy and ``scipy.special`` only, every draw from a named seed.

``estimators`` turn traces into a number, ``bootstrap`` gives that number an interval, ``inference`` turns intervals
into decisions, ``power`` says how many traces a decision needs, ``sequential`` is for watching a canary at any moment.
"""
