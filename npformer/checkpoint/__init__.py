"""Reads and writes files with the weights of a model, without torch and without executing their content.

`load_folder` reads a local folder, `convert` writes one, and `module_path` returns Hugging Face's name for a group of
weights. In order from bytes to models, the modules are `storage`, `safetensors`, `pickled` and `torch_file`, `tree`,
`read`, and `convert`.
"""

from npformer.checkpoint.convert import convert
from npformer.checkpoint.read import load_folder
from npformer.checkpoint.tree import flatten, module_path, to_torch, to_tree, unflatten

__all__ = ["convert", "flatten", "load_folder", "module_path", "to_torch", "to_tree", "unflatten"]
