"""Replays: a pass that recurs runs as a flat list of NumPy calls, with the bits that the engine gives.

A model with little arithmetic spends a short pass in the interpreter: in checks, stages, and parts that call parts. All
of this is the same for other ids. `recorded_array.py` has arrays that report what NumPy does with them. `recorder.py`
notes it, `program.py` repeats it, and `replays.py` decides which passes of a model are worth a program.

Nothing else in the package knows of recording, except that arrays of a pass are made by `empty_like`, and that
`runtime/` asks `recording.py` where it hands work to threads, chooses between ways, or looks a weight up.
"""
