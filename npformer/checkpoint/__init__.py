"""Checkpoints: reading and writing a model's weights as files, without torch and without ever executing what they hold.

`load_folder` reads a local folder whoever wrote it, `convert` writes one, `module_path` says where Hugging Face keeps
one of our groups of weights. From the bytes up: `storage`, `tensors` and `pickled`/`torch_file`, `layout` and
`families`, `folder` and `write`.
"""

from npformer.checkpoint.families import module_path, to_torch, to_tree
from npformer.checkpoint.folder import load_folder
from npformer.checkpoint.layout import flatten, unflatten
from npformer.checkpoint.write import convert

__all__ = ["convert", "flatten", "load_folder", "module_path", "to_torch", "to_tree", "unflatten"]
