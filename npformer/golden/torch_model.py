"""Runs a Hugging Face model in torch on a golden file's token ids and reads its stages with hooks on its modules.

`torch_attention.py` reads the stages inside attention. torch and transformers are imported only when needed, because
npformer does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from npformer.checkpoint.tree import module_path
from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS
from npformer.engine.runtime.packing import Text
from npformer.families import family_of, parts_of
from npformer.golden.format import Golden
from npformer.golden.fused import fused_layers, fused_pairs, fused_parts, split_ending
from npformer.golden.names import stage_names, weight_names
from npformer.golden.torch_attention import as_numpy, attention
from npformer.interpret import stages as table

#: Last part of a stage that is a module's input -> last part of that module's group of weights.
INPUTS = {
    "embeddings.sum": "embeddings.norm",
    "attention.combined": "attention.output",
    "attention_residual": "attention_norm",
    "ffn.activation": "ffn.output",
    "ffn_residual": "ffn_norm",
    "convolution_residual": "convolution_norm",
    "pooled": "head.output",
    "head.activation": "head.norm",
}
#: Fields of a model's output, in the order of the tuple that it returns with return_dict=False.
FIELDS = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")


def load_torch(name: str, golden: Golden) -> Any:
    """Loads a model with transformers for `compare`, in float32 with eager attention and the golden file's head.

    Parameters
    ----------
    name : folder or Hugging Face id
    golden : Golden

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    NpformerError
        If torch or transformers is not installed, or transformers cannot load the model.
    """
    try:
        import transformers
    except ImportError:
        raise NpformerError("--torch needs torch and transformers; pip install torch transformers") from None
    try:
        architecture = getattr(transformers, family_of(golden.config).architecture(golden.config))
        return architecture.from_pretrained(name, attn_implementation="eager").float().eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise NpformerError(f"{name}: transformers cannot load it: {error!s:.300}") from None


def is_training(model: Any) -> bool:
    """Returns whether any part of a torch model is in training mode, with dropout on."""
    return any(module.training for module in model.modules())


def stages_of(model: Any, golden: Golden, after_eval: bool = False) -> dict[str, Any]:
    """Returns the golden file's stages that the model has, padded (B, L, ...), and its weights by their torch names.

    The model runs in its current mode, or with `after_eval` in eval mode.
    """
    import torch

    heard: dict[str, np.ndarray] = {}
    modes = {module: module.training for module in model.modules()}
    try:
        if after_eval:
            model.eval()
        with torch.no_grad():
            if _takes_no_batch(golden):
                # Transformers keeps the frequencies of rotations from a longer text, so shorter texts run first.
                for i, text in sorted(enumerate(golden.texts), key=lambda each: len(each[1])):
                    _run(model, golden, [text], each := dict[str, np.ndarray]())
                    heard |= {f"{i}/{name}": array for name, array in each.items()}
            else:
                _run(model, golden, golden.texts, heard, golden.sources)
    finally:
        for module, training in modes.items():
            module.training = training
    known, fused = weight_names(golden.config), fused_parts(golden.config)
    weights = model.state_dict().items()
    return heard | {name: tensor for name, tensor in weights if name in known or split_ending(name)[0] in fused}


def _reads_last(golden: Golden) -> bool:
    """Returns whether the head outputs a row for every token, and the last token's row is the answer."""
    return golden.config.pooling == "last" and golden.config.head in POOLED_HEADS


def _takes_no_batch(golden: Golden) -> bool:
    """Returns whether texts must run one by one.

    They must if the head cannot find padding, if rotations depend on a text's length, or in encoder-decoders, where all
    texts in a batch need the same number of end tokens.
    """
    config = golden.config
    by_length = any(each.same_until(1) is not None for each in parts_of(config).stack.mechanisms)
    unpadded = _reads_last(golden) and config.pad_id is None
    return unpadded or by_length or (bool(config.decoder) and config.head in POOLED_HEADS)


def _run(
    model: Any, golden: Golden, texts: list[Text], heard: dict[str, np.ndarray], sources: Sequence[Text] = ()
) -> None:
    """Fills `heard` with the stages of one batch of texts. If sources are given, the texts are the decoder's input."""
    import torch

    ids, mask, token_type_ids = padded_ids(texts, golden.config.pad_id or 0)
    given = {"input_ids": ids, "attention_mask": mask}
    if sources:
        of_source, mask, _ = padded_ids(sources, golden.config.pad_id or 0)
        given = {"input_ids": of_source, "attention_mask": mask, "decoder_input_ids": ids}
    if golden.config.n_token_types:
        given["token_type_ids"] = token_type_ids
    if golden.config.head == "multiple-choice":
        given = {name: array[None] for name, array in given.items()}
    with listening(model, golden, heard):
        output = model(**{name: torch.from_numpy(array) for name, array in given.items()})
    heard |= _answers(output, golden)


def _answers(output: Any, golden: Golden) -> dict[str, np.ndarray]:
    """Returns the stages that a model returns, such as logits after a soft cap, which no module returns."""
    known = stage_names(golden)
    fields = [name for name in FIELDS if name in known]
    if isinstance(output, tuple):
        found = dict(zip(fields, output, strict=False))
    else:
        found = {name: getattr(output, name) for name in fields if getattr(output, name, None) is not None}
    arrays = {known[name]: as_numpy(tensor) for name, tensor in found.items()}
    if golden.config.head == "multiple-choice" and "logits" in arrays:  # (1, choices)
        arrays["logits"] = arrays["logits"].reshape(-1, 1)
    return arrays


def padded_ids(texts: Sequence[Text], padding: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, mask and token_type_ids (B, L), with the padding token after each text."""
    width = max(len(text) for text in texts)
    ids, mask, token_type_ids = (np.zeros((len(texts), width), np.int64) for _ in range(3))
    ids += padding
    for i, text in enumerate(texts):
        ids[i, : len(text)] = text.ids
        mask[i, : len(text)] = 1
        if text.token_type_ids is not None:
            token_type_ids[i, : len(text)] = text.token_type_ids
    return ids, mask, token_type_ids


@contextmanager
def listening(model: Any, golden: Golden, heard: dict[str, np.ndarray]) -> Iterator[None]:
    """Fills `heard` with the inputs and outputs of the model's modules while it runs."""
    config = golden.config
    modules = dict(model.named_modules(remove_duplicate=False))  # Marian's stacks share a table
    if not any(path in modules for path in table.modules(config)):
        raise NpformerError(
            f"{type(model).__name__}: expected modules of {family_of(config).architecture(config)}, found none of them"
        )
    outputs = {path: _asked(runs, golden) for path, runs in table.module_runs(config).items()}
    if (head := module_path(config, "head.output")) and config.head == "question-answering":
        outputs[head] = [head]
    if head and _reads_last(golden):
        outputs[head] = []
    outputs |= {path: [f"{attention}.qkv"] for path, attention in fused_layers(config).items()}
    outputs |= {path: [path] for path, parts in fused_pairs(config).items() if parts.keys() & golden.stages.keys()}
    inputs: dict[str, list[str]] = {}
    for stage, group in _inputs(golden):
        if (path := _module_reading(golden, stage, group)) and (stage != "pooled" or "pooler" in golden.stages):
            inputs.setdefault(path, []).append(stage)
    convolution = module_path(config, "convolution") if "convolution.hidden" in golden.stages else None
    with ExitStack() as stack:

        def hear(register: Callable[..., Any], stages: list[str], tensor: Callable[[Any, Any], Any]) -> None:
            stack.callback(register(_hook(heard, iter(stages), tensor)).remove)

        for module, stages in _by_module(outputs, modules).items():
            hear(module.register_forward_hook, stages, lambda args, output: _first(output))
        given = {path: _asked(stages, golden) for path, stages in inputs.items()}
        for module, stages in _by_module(given, modules).items():
            hear(module.register_forward_pre_hook, stages, lambda args, output: args[0])
        if convolution in modules:  # its output has a column for each token
            hear(modules[convolution].register_forward_hook, ["convolution.hidden"], lambda args, output: output.mT)
        stack.enter_context(attention(model, golden, modules, heard))
        yield


def _by_module(stages: Mapping[str, list[str]], modules: Mapping[str, Any]) -> dict[Any, list[str]]:
    """Maps each module to the stages of its calls, in order. Layers may share a module."""
    found: dict[Any, list[str]] = {}
    for path, names in stages.items():
        if path in modules:
            found.setdefault(modules[path], []).extend(names)
    return found


def _inputs(golden: Golden) -> Iterator[tuple[str, str]]:
    """Yields the stages of `INPUTS` that the model has, each with its group of weights."""
    ends = dict(INPUTS)
    if golden.config.norm_first:
        del ends["ffn_residual"]
        ends = {"cross_attention_residual": "ffn_norm", **ends, "attention_residual": "ffn_norm"}
    if any(stage.endswith(".ffn.gated") for stage in golden.stages):
        ends["ffn.gated"] = ends.pop("ffn.activation")
    if module_path(golden.config, "head.norm") is None:
        ends["head.activation"] = "head.output"
    stages = table.names(golden.config)
    for stage in stages:
        if (end := next(filter(stage.endswith, ends), None)) is not None:
            before = stage.removesuffix(end)
            crosses = golden.config.norm_first and end == "attention_residual" and f"{before}cross_{end}" in stages
            yield stage, before + ("cross_attention_norm" if crosses else ends[end])


def _module_reading(golden: Golden, stage: str, group: str) -> str | None:
    """Returns the module that reads a stage: the module of its group, or the first layer if no norm precedes it."""
    path = module_path(golden.config, group)
    if path is None and stage.endswith("embeddings.sum"):
        query = module_path(golden.config, stage.replace("embeddings.sum", "layers.0.attention.query"))
        return query.rsplit(".", 2)[0] if query else None
    return path


def _asked(runs: list[str], golden: Golden) -> list[str]:
    """Returns the stages of a module's successive calls, with "" for stages that the golden file lacks."""
    return [stage if stage in golden.stages else "" for stage in runs]


def _first(output: Any) -> Any:
    """Returns a module's first output."""
    return output[0] if isinstance(output, tuple) else output


def _hook(
    heard: dict[str, np.ndarray], stages: Iterator[str], tensor: Callable[[Any, Any], Any]
) -> Callable[..., None]:
    """Returns a hook that records tensor(inputs, output) of a module; each call records the next of `stages`."""

    def hook(module: Any, args: Any, output: Any = None) -> None:
        if (stage := next(stages, "")) and stage not in heard:  # an inner module's hook runs first
            heard[stage] = as_numpy(tensor(args, output))

    return hook
