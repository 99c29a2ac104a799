"""Hash vectors, first divergence, its cause, and the statistics of many branches; pure.

``align`` · ``cause`` · ``exact`` · ``statistics`` · ``outcomes`` · ``tables`` · ``textmap``.
scipy, statsmodels and pandas are imported by the functions that need them, never on import.
"""
