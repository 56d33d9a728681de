"""The engine: the mathematics of `npformer.plain`, made to run fast, be traced and be differentiated.

The functions and their backward passes stand in `functions.py`, `activations.py` and `attention.py`. Parts of models
are made of them: `norms/`, `mechanisms/`, `blocks/`, `layers/`, `output_heads/`. `transformer.py` runs a whole model.
`runtime/` packs texts and uses the cores; `taps.py` and `tape.py` let others see and differentiate each stage.
"""
