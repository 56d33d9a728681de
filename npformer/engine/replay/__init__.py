"""Repeats a recurring pass as a flat list of NumPy calls that give the same bits as the engine.

In a short pass of a small model, the interpreter takes most of the time: checks, stages, and calls from part to part.
This overhead does not depend on the ids. The arrays of `recorded_array.py` report every NumPy operation in which they
are used. `recorder.py` lists the operations, `program.py` repeats the operations, and `replays.py` decides which passes
of a model to record.

Only two rules apply to code outside this folder. The engine allocates arrays with `empty_like`, and `runtime/`
consults `recording.py` before it hands work to threads, runs a trial, or looks up a weight.
"""
