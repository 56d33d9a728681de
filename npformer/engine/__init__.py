"""The engine: the mathematics of `npformer.plain`, written for speed, traces and gradients.

The functions and their backward passes are in `functions.py`, `activations.py` and `attention.py`. The parts of models
combine these functions: `norms/`, `mechanisms/`, `blocks/`, `layers/`, `output_heads/`. `transformer.py` runs a whole
model. `runtime/` packs texts and distributes work to cores. `taps.py` exposes each stage to listeners, and `tape.py`
records stages for backward passes.
"""
