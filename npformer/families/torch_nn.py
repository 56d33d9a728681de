"""State dicts of torch's nn.Transformer, its encoder, decoder and layers, and nn.MultiheadAttention.

The state dict may be from the torch module itself, or from your own model that contains the module, with embeddings and
a head. A small config.json next to the state dict gives the sizes that the state dict does not contain.
`TorchModules.read_config` lists its fields. The field `modules` maps npformer's groups to the modules of your model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import Config, Decoder, Positions
from npformer.families.base import Source, TensorPart, read_fields, read_ids, read_labels, write_labels
from npformer.families.vaswani import Transformer

HEADS = ("base", "sequence-classification", "token-classification", "translation")

#: Torch classes with supported state dicts.
CLASSES = (
    "nn.Transformer",
    "nn.TransformerEncoder",
    "nn.TransformerDecoder",
    "nn.TransformerEncoderLayer",
    "nn.TransformerDecoderLayer",
    "nn.MultiheadAttention",
)
#: Torch classes whose state dict contains the weights of a single layer at the top level, without embeddings.
ONE_LAYER = ("nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer", "nn.MultiheadAttention")

#: For each field of npformer, the field of config.json and its default (... if required).
FIELDS = {
    "d_model": ("d_model", ...),
    "n_heads": ("n_heads", ...),
    "d_ffn": ("d_ffn", ...),
    "n_layers": ("n_layers", 0),
    "vocab_size": ("vocab_size", 0),
    "max_length": ("max_length", 512),
    "activation": ("activation", "relu"),
    "eps": ("eps", 1e-5),
    "norm_first": ("norm_first", False),
    "bias": ("bias", True),
    "final_norm": ("final_norm", False),
    "scale_embedding": ("scale_embedding", False),
    "shared": ("share_embeddings", False),
    "tied": ("tie_word_embeddings", False),
    "pad_id": ("pad_token_id", None),
}
DECODER_FIELDS = {
    "n_layers": ("n_decoder_layers", 0),
    "n_heads": ("n_decoder_heads", None),
    "d_ffn": ("d_decoder_ffn", None),
    "vocab_size": ("target_vocab_size", None),
    "start_id": ("decoder_start_token_id", 0),
}
OTHERS = (
    "model_type",
    "architectures",
    "positions",
    "eos_token_id",
    "head",
    "id2label",
    "label2id",
    "modules",
    "dtype",
)

#: Maps the last part of a group's name to the name of its module inside torch's enclosing module, or to "" if the group
#: is not a separate module.
NAMES = {
    "attention": "self_attn",
    "attention_norm": "norm1",
    "cross_attention": "multihead_attn",
    "cross_attention_norm": "norm2",
    "ffn": "",
    "ffn.hidden": "linear1",
    "ffn.output": "linear2",
    "attention.output": "out_proj",
    "cross_attention.output": "out_proj",
    "output": "out_proj",
    "embeddings": "",
    "embeddings.token": "embedding",
    "embeddings.position": "positions",
    "head": "",
    "head.output": "head",
}
MOST_MODULES = 200  # a pattern with `*` counts once for all layers
THIRDS = {"query": 0, "key": 1, "value": 2}


class TorchModules(Transformer):
    """The family of torch's own modules."""

    def check(self, config: Config) -> Config:
        checks.one_of("head", config.head, HEADS)
        checks.one_of("torch_class", config.torch_class, CLASSES)
        if config.head == "translation" and config.torch_class != "nn.Transformer":
            raise NpformerError(f"architectures: a translation model needs nn.Transformer, got {config.torch_class}")
        if config.vocab_size and config.torch_class in ONE_LAYER:
            raise NpformerError(
                f"vocab_size: expected 0, because {config.torch_class} has no embeddings and reads vectors, "
                f"got {config.vocab_size}; a model that reads token ids needs nn.TransformerEncoder or nn.Transformer"
            )
        if config.decoder and config.head not in ("base", "translation"):
            raise NpformerError(f"decoder: expected no layers for a {config.head} model, got {config.decoder.n_layers}")
        return config

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        """Reads config.json, which requires model_type "transformer", d_model, n_heads and d_ffn.

        Optional fields and their defaults: architectures ["nn.Transformer"], n_layers 0, n_decoder_layers 0,
        n_decoder_heads n_heads, d_decoder_ffn d_ffn, vocab_size 0, target_vocab_size vocab_size, max_length 512,
        activation "relu", eps 1e-5, norm_first false, bias true, final_norm false, positions "sinusoidal",
        scale_embedding false, share_embeddings false, tie_word_embeddings false, decoder_start_token_id 0,
        eos_token_id null, pad_token_id null, head "base", id2label two labels, modules {}. label2id and dtype are
        accepted but not used. Any other field is an error.
        """
        known = {theirs for theirs, _ in (*FIELDS.values(), *DECODER_FIELDS.values())}.union(OTHERS)
        if odd := sorted(set(data) - known):
            fields = ", ".join(sorted(known))
            raise NpformerError(f"{odd[0]!r:.80}: unknown field in config.json of a transformer; known: {fields}")
        settings = read_fields(FIELDS, data, "transformer")
        decoder = read_fields(DECODER_FIELDS, data, "transformer")
        decoder |= {name: settings[name] for name in ("n_heads", "d_ffn", "vocab_size") if decoder[name] is None}
        architectures, modules = data.get("architectures") or ["nn.Transformer"], data.get("modules") or {}
        if not isinstance(modules, dict) or not all(isinstance(each, str) for each in modules.values()):
            raise NpformerError("modules: expected an object that maps npformer's groups to modules of the checkpoint")
        if len(modules) > MOST_MODULES:
            raise NpformerError(f"modules: expected at most {MOST_MODULES} groups, got {len(modules)}")
        torch_class = architectures[0] if isinstance(architectures, list) else architectures
        head = head or data.get("head", "base")
        return self.config(
            head,
            **settings,
            positions=Positions(data.get("positions", "sinusoidal")),
            labels=read_labels(head, data),
            decoder=_decoder(decoder, data, torch_class),
            torch_class=torch_class,
            modules=tuple(modules.items()),
        )

    def write_config(self, config: Config) -> dict[str, Any]:
        data: dict[str, Any] = {"model_type": self.model_type, "architectures": [config.torch_class]}
        data |= {theirs: getattr(config, ours) for ours, (theirs, _) in FIELDS.items()}
        data |= {theirs: getattr(config.decoder, ours) for ours, (theirs, _) in DECODER_FIELDS.items()}
        data["positions"] = config.positions.table
        data["eos_token_id"] = list(config.decoder.end_ids)
        return {**data, "head": config.head, "modules": dict(config.modules), **write_labels(config)}

    def architecture(self, config: Config) -> str:
        return config.torch_class

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        own = dict(config.modules)
        found = {}
        for ours, (group, array) in arrays.items():
            *path, last = group.split(".")
            pattern = ".".join("*" if part.isdigit() else part for part in [*path, last])
            n = next((part for part in path if part.isdigit()), "")
            if last in THIRDS and pattern not in own:
                name = _join(module(pattern.rpartition(".")[0], config), f"in_proj_{array}")
                found[ours] = Source((name.replace("*", n),), TensorPart(THIRDS[last], (1, 1, 1)))
            else:
                name = module(pattern, config).replace("*", n)
                names = (_join(name, array), name) if last == "position" else (_join(name, array),)
                found[ours] = Source(names, buffer=last == "position")
        return found


def _decoder(fields: dict[str, Any], data: Mapping[str, Any], torch_class: object) -> Decoder:
    """The decoder stack. A single decoder layer is a stack with one layer."""
    if fields["n_layers"] == 0 and torch_class == "nn.TransformerDecoderLayer":
        fields["n_layers"] = 1
    return Decoder(**fields, end_ids=read_ids("eos_token_id", data.get("eos_token_id")))


def module(group: str, config: Config) -> str:
    """The name in the state dict of a group of weights, or of a prefix of groups. `*` stands for any layer.

    >>> module("encoder.layers.*.attention", TORCH_MODULES.read_config({"d_model": 4, "n_heads": 2, "d_ffn": 8}, None))
    'encoder.layers.*.self_attn'
    """
    own = dict(config.modules)
    if group in own or not group:
        return own.get(group, "")
    parent, _, last = group.rpartition(".")
    if last == "ffn_norm":
        is_decoder = "decoder" in group or "Decoder" in config.torch_class
        return _join(module(parent, config), "norm3" if is_decoder else "norm2")
    above = parent.rpartition(".")[2]
    return _join(module(parent, config), NAMES.get(f"{above}.{last}", NAMES.get(last, last)))


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


TORCH_MODULES = TorchModules(
    model_type="transformer",
    architectures=dict.fromkeys(CLASSES, "base"),
    constants={"positions": Positions("sinusoidal"), "torch_class": "nn.Transformer"},
    strict=True,
)
