"""Writes checkpoints with torch, and lists Transformers' tensor names for every architecture, for the tests.

Writes these files into the folder `checkpoints` next to this file:

* files of `torch.save` in each of its formats, with tensors of every dtype and every kind of storage, and their values
* `architectures.json`: for each architecture a config.json, the shapes of its stored tensors, and the names
  of its weights' modules if files use other names

Needs torch and transformers; the tests need neither.

    python tests/golden/make_checkpoints.py             writes the files
    python tests/golden/make_checkpoints.py --check     writes them into a temporary folder, and compares
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

SIZES = {
    "DistilBert": {
        "vocab_size": 11,
        "dim": 6,
        "n_heads": 2,
        "n_layers": 2,
        "hidden_dim": 10,
        "max_position_embeddings": 8,
    },
    "Bert": {
        "vocab_size": 11,
        "hidden_size": 6,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 10,
        "max_position_embeddings": 8,
    },
}
SIZES["Electra"] = SIZES["Bert"] | {"embedding_size": 4}
SIZES["Albert"] = SIZES["Electra"]
SIZES |= dict.fromkeys(("Roberta", "XLMRoberta", "Camembert", "MPNet"), SIZES["Bert"] | {"max_position_embeddings": 10})
SIZES["ModernBert"] = SIZES["Bert"] | {
    "num_attention_heads": 3,
    "pad_token_id": 0,
    "cls_token_id": 1,
    "sep_token_id": 1,
}
SIZES["DebertaV2"] = SIZES["Bert"] | {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 4,
}
SIZES["GPT2"] = {"vocab_size": 11, "n_embd": 6, "n_head": 2, "n_layer": 2, "n_inner": 10, "n_positions": 8}
SIZES["GPT2"] |= dict.fromkeys(("bos_token_id", "eos_token_id"), 10)
SIZES["NomicBert"] = SIZES["Bert"] | {"num_attention_heads": 3}
SIZES["Llama"] = SIZES["Bert"] | {"num_attention_heads": 3, "num_key_value_heads": 1}
SIZES["Llama"] |= dict.fromkeys(("bos_token_id", "eos_token_id"), 10)
SIZES |= dict.fromkeys(("Mistral", "Qwen2"), SIZES["Llama"])
SIZES["Qwen3"] = SIZES["Llama"] | {"head_dim": 4}
SIZES |= dict.fromkeys(("Gemma", "Gemma2", "Gemma3Text"), SIZES["Qwen3"])
SIZES["GPTNeoX"] = SIZES["Bert"] | {"num_attention_heads": 3, "rotary_pct": 1.0}
SIZES["GPTNeoX"] |= dict.fromkeys(("bos_token_id", "eos_token_id"), 10)
SIZES["OPT"] = SIZES["Bert"] | {"ffn_dim": 10, "word_embed_proj_dim": 4}
SIZES["OPT"] |= dict.fromkeys(("bos_token_id", "eos_token_id"), 10)
SIZES["Phi3"] = SIZES["Llama"] | {"pad_token_id": 0}
SIZES["SmolLM3"] = SIZES["Llama"] | {"pad_token_id": 0}
SIZES["Olmo2"] = SIZES["Llama"] | {"pad_token_id": 0}
SIZES["Bloom"] = {"vocab_size": 11, "hidden_size": 6, "n_head": 3, "n_layer": 2, "seq_length": 8}
SIZES["Bloom"] |= dict.fromkeys(("bos_token_id", "eos_token_id"), 10)
HEADS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForPreTraining",
    "ForCausalLM",
    "LMHeadModel",
    "DoubleHeadsModel",
)
DECODERS = (
    "GPT2",
    "Llama",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Gemma",
    "Gemma2",
    "Gemma3Text",
    "GPTNeoX",
    "OPT",
    "Phi3",
    "Bloom",
    "SmolLM3",
    "Olmo2",
)  # always causal
OTHER_NAMES = {"Gemma3TextForCausalLM": "Gemma3ForCausalLM"}
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
SAVED = {  # file -> arguments of torch.save
    "zip": {},
    "zip_protocol_4": {"pickle_protocol": 4},
    "zip_protocol_5": {"pickle_protocol": 5},
    "legacy": {"_use_new_zipfile_serialization": False},
    "legacy_protocol_4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


def tensors() -> dict[str, torch.Tensor]:
    """Every dtype, every kind of view, and a storage that several tensors share."""
    torch.manual_seed(0)
    values = torch.randn(4, 6) * 3
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return {
        **{str(dtype).removeprefix("torch."): values.to(dtype) for dtype in DTYPES},
        "special": torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40]),
        "special_bfloat16": torch.tensor([float("inf"), float("nan"), 1e-40, -3.0]).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "shared": base,
        "shared_again": base,
        "rows": base[1:3],
        "columns": base[:, 2:5],
        "transposed": base.t(),
        "stepped": base[::2, ::3],
        "expanded": base[0, :1].expand(3, 5),
        "four_axes": base.reshape(2, 2, 3, 2).permute(3, 0, 2, 1),
        "parameter": torch.nn.Parameter(values[0]),
        "half_transposed": values.half().t(),
    }


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def module() -> torch.nn.Module:
    """A module: its state dict is an OrderedDict that also stores the modules' versions."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def architectures() -> dict[str, dict]:
    result = {}
    for family, sizes in SIZES.items():
        config_class = getattr(transformers, f"{family}Config")
        for head in HEADS:
            name = OTHER_NAMES.get(family + head, family + head)
            if not hasattr(transformers, name):
                continue
            causal = {"is_decoder": True} if head in ("ForCausalLM", "LMHeadModel") and family not in DECODERS else {}
            model = getattr(transformers, name)(config_class(**sizes, num_labels=3 if "Cl" in head else 2, **causal))
            config = model.config.to_diff_dict() | {"architectures": [name]}
            stored = revert_weight_conversion(model, model.state_dict())  # names and shapes as in a stored file
            result[name] = {
                "config": config,
                "tensors": {key: list(tensor.shape) for key, tensor in stored.items()},
                "tied": sorted(model.all_tied_weights_keys),
            }
            if modules(model.state_dict()) != modules(stored):
                result[name]["modules"] = modules(model.state_dict())
    return result


def modules(tensors: dict[str, torch.Tensor]) -> list[str]:
    return sorted({name.rpartition(".")[0] for name in tensors})


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    folder.mkdir(exist_ok=True)
    content = tensors()
    for name, arguments in SAVED.items():
        torch.save(content, folder / f"{name}.bin", **arguments)
    np.savez_compressed(folder / "values.npz", **{name: numpy_of(each) for name, each in content.items()})
    state = module().state_dict()
    torch.save(state, folder / "state_dict.bin")
    torch.save(state, folder / "state_dict_legacy.bin", _use_new_zipfile_serialization=False)
    np.savez_compressed(folder / "state_dict.npz", **{name: numpy_of(each) for name, each in state.items()})
    torch.save(module(), folder / "whole_module.bin")
    lines = (
        f"{json.dumps(name)}:{json.dumps(described, sort_keys=True, separators=(',', ':'))}"
        for name, described in sorted(architectures().items())
    )
    (folder / "architectures.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def same(made: Path, committed: Path) -> bool:
    """Whether two files have equal content. Their bytes may differ: torch's older format stores addresses, and Python
    versions compress differently."""
    if committed.exists() and made.suffix == ".npz":
        with np.load(made) as new, np.load(committed) as old:
            return new.files == old.files and all(
                (new[k].dtype, new[k].shape, new[k].tobytes()) == (old[k].dtype, old[k].shape, old[k].tobytes())
                for k in new
            )
    if not committed.exists() or made.suffix == ".json" or "legacy" not in made.name:
        return committed.exists() and made.read_bytes() == committed.read_bytes()
    # this script wrote the files, so unpickling is safe
    new, old = (torch.load(path, weights_only=False) for path in (made, committed))
    return new.keys() == old.keys() and all(torch.equal(new[k].nan_to_num(), old[k].nan_to_num()) for k in new)


def check(folder: Path) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
        made = sorted(Path(temporary).iterdir())
        different = [path.name for path in made if not same(path, folder / path.name)]
    outcome = f"different: {', '.join(different)}" if different else "as committed"
    print(f"{folder.name}: {len(made)} files, {outcome}")
    return 1 if different else 0


if __name__ == "__main__":
    CHECKPOINTS = Path(__file__).parent / "checkpoints"
    if "--check" in sys.argv[1:]:
        sys.exit(check(CHECKPOINTS))
    main(CHECKPOINTS)
