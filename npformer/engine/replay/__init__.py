"""Replays: repeats a recurring pass as a flat list of NumPy calls, with the same bits as the engine.

In a short pass of a small model, most of the time goes to the interpreter: checks, stages, and calls from part to part.
This overhead does not depend on the ids. `recorded_array.py` has arrays that report every NumPy operation on them.
`recorder.py` lists the operations, `program.py` repeats them, and `replays.py` decides which passes of a model to
record.

The rest of the package is written without regard to recording, with two exceptions. The engine allocates arrays with
`empty_like`, and `runtime/` consults `recording.py` before it hands work to threads, runs a trial, or looks up a
weight.
"""
