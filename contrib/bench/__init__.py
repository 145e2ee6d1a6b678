"""Measurements, one script a subject and one line a figure: `python -m contrib.bench.<name>`.

Timings depend on the machine, so each is set against something measured in the same run.
"""
