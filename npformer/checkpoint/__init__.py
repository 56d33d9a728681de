"""Checkpoints: reading and writing a model's weights as files, without torch and without ever executing what they hold.

`load_folder` reads a local folder whoever wrote it, `convert` writes one, `module_path` says where Hugging Face keeps
one of our groups of weights. From the bytes up: `storage`, `safetensors` and `pickled`/`torch_file`, `tree` and
`read` and `convert`.
"""

from npformer.checkpoint.convert import convert
from npformer.checkpoint.read import load_folder
from npformer.checkpoint.tree import flatten, module_path, to_torch, to_tree, unflatten

__all__ = ["convert", "flatten", "load_folder", "module_path", "to_torch", "to_tree", "unflatten"]
