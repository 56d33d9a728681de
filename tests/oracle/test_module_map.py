"""The stages that transformers' modules output, for every family and every option of a config.

The outputs of transformers' modules, named by path, and the fields of the model's output agree with a golden file.
The model itself, in which `compare` sets hooks, also agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npformer import golden
from npformer.config import Config
from npformer.golden.suite import cases
from npformer.golden.tiny import LENGTHS, write_case
from npformer.interpret import stages as table
from tests.oracle.test_every_family import HEADS, OF_DECODERS, OPTIONS
from tests.support import tiny

#: Fields of transformers' output with a tensor for each layer, and with a single one.
OF_LAYERS = [f"{side}{name}" for side in ("", "encoder_", "decoder_") for name in ("hidden_states", "attentions")]
SINGLE = ("last_hidden_state", "encoder_last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")


def models() -> Iterator[tuple[str, Config, tuple[int, ...]]]:
    """Yields the models of the conformance suite and the options of a few checkpoints, with the texts' lengths.

    torch's own modules are left out, because they have no paths.
    """
    for case in cases():
        if case.config.model_type != "transformer" and case.dtype == "float32":
            yield case.name, case.config, case.lengths if case.name.endswith("lengths") else LENGTHS
    for family, head in HEADS:
        name, _, option = family.partition("+")
        if option:
            yield f"{family}, {head}", tiny.config(name, head, **{**OPTIONS, **OF_DECODERS}[option]), LENGTHS


MODELS = {name: model for name, *model in models()}


def outputs(model: Any, recorded: golden.Golden) -> dict[str, np.ndarray]:
    """Returns the first output of each module that runs once per text, and the output's fields, as `i/name` for text i.

    Shorter texts run first, because frequencies that depend on a text's length remain for later texts.
    """
    heard: dict[str, list[Any]] = {}

    def hear(name: str) -> Any:
        return lambda module, args, output: heard.setdefault(name, []).append(
            output[0] if isinstance(output, tuple) else output
        )

    arrays = dict[str, np.ndarray]()
    hooks = [module.register_forward_hook(hear(path)) for path, module in model.named_modules() if path]
    for i in sorted(range(len(recorded.texts)), key=lambda i: len(recorded.texts[i])):
        heard.clear()
        with torch.no_grad():
            fields = model(**inputs(recorded, i), output_hidden_states=True, output_attentions=True)
        for name, value in fields.items():
            if name in SINGLE:
                heard[name] = [value]
            elif name in OF_LAYERS or name == "cross_attentions":
                heard |= {f"{name}.{layer}": [each] for layer, each in enumerate(value)}
        for name, made in heard.items():
            if len(made) == 1 and isinstance(made[0], torch.Tensor) and made[0].is_floating_point():
                arrays[f"{i}/{name}"] = made[0].detach().numpy()
    for hook in hooks:
        hook.remove()
    return arrays


def inputs(recorded: golden.Golden, i: int) -> dict[str, Any]:
    """Returns transformers' arguments for text i."""
    text, config = recorded.texts[i], recorded.config
    given = {"input_ids": text.ids}
    if recorded.sources:
        given = {"input_ids": recorded.sources[i].ids, "decoder_input_ids": text.ids}
    if text.token_type_ids is not None:
        given["token_type_ids"] = text.token_type_ids
    lead = (1, 1) if config.head == "multiple-choice" else (1,)
    return {name: torch.from_numpy(array).reshape(*lead, -1) for name, array in given.items()}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_of_modules_are_the_stages_of_the_map(name: str, tmp_path: Path) -> None:
    config, lengths = MODELS[name]
    recorded = write_case(tmp_path, name, config, 1, lengths)
    model = golden.load_torch(str(tmp_path), recorded)
    arrays = outputs(model, recorded)
    comparison = golden.compare(recorded, arrays)
    assert comparison.ok, str(comparison)
    compared = {row.stage for row in comparison.rows}
    mapped = {stage for path, stage in table.modules(recorded.config).items() if f"0/{path}" in arrays}
    assert mapped <= compared
    assert len(compared) >= 10
    assert (hooked := golden.compare(recorded, model)).ok, str(hooked)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("-dynamic", "-longrope"))])
def test_a_model_whose_frequencies_depend_on_the_length_is_read_text_by_text(name: str, tmp_path: Path) -> None:
    """In a batch with padding, transformers computes the frequencies of all texts from the longest."""
    config = replace(MODELS[name][0], pad_id=1)
    recorded = write_case(tmp_path, name, config, 1, (9, 3, 6))
    comparison = golden.compare(recorded, golden.load_torch(str(tmp_path), recorded))
    assert comparison.ok, str(comparison)
