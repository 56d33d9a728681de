"""`EncoderTable`: a family described by a table, for checkpoints that differ from BERT in names and constants."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, Positions, Sharing
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.embeddings import Embeddings
from npformer.engine.mechanisms import Window
from npformer.families.base import (
    ACTIVATIONS,
    Family,
    Source,
    first,
    read_activation,
    read_fields,
    read_labels,
    read_text_ids,
    reject_other,
    write_labels,
    write_text_ids,
)
from npformer.families.building import embeddings_of

#: Maps npformer's fields to fields of config.json, for BERT and most of its successors.
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "d_ffn": "intermediate_size",
    "max_length": "max_position_embeddings",
}

#: Maps each head to the stages with dropout that it reads, for BERT and most of its successors.
READ = {
    "sequence-classification": "pooled",
    "multiple-choice": "pooled",
    "token-classification": "layers.*.ffn_norm",
}

#: For each head, the module of each group of weights, in most decoders.
DECODER_HEADS: dict[str, dict[str, str]] = {
    "base": {},
    "causal-lm": {"head.output": "lm_head"},
    "sequence-classification": {"head.output": "score"},
    "token-classification": {"head.output": "classifier"},
    "question-answering": {"head.output": "qa_outputs"},
}

#: The supported values of fields of config.json that change the computation.
SUPPORTED = {"add_cross_attention": False}


@dataclass(frozen=True, eq=False, kw_only=True)
class EncoderTable(Family):
    """A family described by a table.

    Modules are named as in a checkpoint with a head. `*` stands for the number of a layer.
    """

    sizes: Mapping[str, str]  # required fields of config.json, by npformer's names
    activation: str  # field of config.json with the activation; "" means always `usual_activation`
    usual_activation: str = "gelu"  # default of that field
    eps: str = ""  # field of config.json with the eps of norms; "" means always 1e-12
    token_types: str = ""  # field of config.json with the number of token types; "" means no token type table
    padding: str = ""  # field of config.json with the padding token, if positions begin after its id, else ""
    layer_groups: str = ""  # field of config.json with the number of groups that share weights; "" means no sharing
    group_layers: str = ""  # field of config.json with the layers per group; if set, module names have two `*`
    always_projected: bool = False  # a projection follows the tables even if the tables are as wide as the layers
    encoder: Mapping[str, str]  # module of each group
    heads: Mapping[str, Mapping[str, str]]  # modules of each head, by group; a head without a class cannot be written
    ids: Mapping[str, int] = field(default_factory=dict)  # default ids of bos, eos and padding
    usual: Mapping[str, Any] = field(default_factory=dict)  # defaults of required fields that files may omit
    in_out: tuple[str, ...] = ()  # suffixes of modules with weights (in, out)
    modules: Mapping[str, str] = field(default_factory=dict)  # module of a group in Transformers, if files differ
    settings: Mapping[str, Any] = field(default_factory=dict)  # additions to SUPPORTED that are also written
    supported: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # additions to SUPPORTED for each head
    twins: Mapping[str, str] = field(default_factory=dict)  # second name of a parameter in a file
    lacking: frozenset[str] = frozenset()  # optional groups of the base model
    buffers: frozenset[str] = frozenset()  # tensors that are not weights of a supported model
    dropped: tuple[str, ...] = ()  # stages with dropout in training; `Parts.dropped` if empty
    read: Mapping[str, str] = field(default_factory=dict)  # for each head, the stages with dropout that it reads
    read_rate: Mapping[str, float] = field(default_factory=dict)  # by head, the dropout rate of `read`, if different

    # --- config.json -------------------------------------------------------------------------------------------------

    def config(self, head: str, **fields: Any) -> Config:
        return super().config(head, **{"causal": True} | fields if head == "causal-lm" else fields)

    def check(self, config: Config) -> Config:
        checks.whole("n_layers", config.n_layers, 1, MOST)
        checks.whole("vocab_size", config.vocab_size, 1, MOST)
        most = MOST if "embeddings.segment" in self.encoder else 0
        checks.whole("n_token_types", config.n_token_types, 1 if self.token_types else 0, most)
        if not self.activation:
            checks.one_of("activation", config.activation, (ACTIVATIONS[self.usual_activation],))
        return super().check(config)

    @property
    def all_heads(self) -> Collection[str]:
        return self.heads

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        """As in `Family`.

        `tie_weights_` is ignored, because only `tie_word_embeddings` has an effect in Transformers.
        `sinusoidal_pos_embds` is ignored, because checkpoints store sinusoidal positions like learned positions.
        """
        head, data = head or self.head_of(data), {**self.usual, **data}
        reject_other(data, {**SUPPORTED, **self.settings, **self.supported.get(head, {})})
        causal = self._is_causal(data, head)
        if data.get("pruned_heads"):
            raise NpformerError("pruned_heads: a checkpoint with pruned attention heads is not supported")
        fields: dict[str, Any] = {}
        if self.padding:
            pad = checks.whole(self.padding, data.get(self.padding, self.constants["pad_id"]), 0, MOST)
            positions = replace(self.constants["positions"], first=pad + 1)
            fields = {"pad_id": pad, "padding_idx": pad, "positions": positions}
        tied = data.get("tie_word_embeddings", self.constants.get("tied", True))
        required = {ours: (theirs, ...) for ours, theirs in self.sizes.items()}
        for ours, value in read_fields(required, data, self.model_type).items():
            least = 1 + {"positions": Positions(), **self.constants, **fields}["positions"].first
            least = least if ours == "max_length" else 1
            fields[ours] = checks.whole(self.sizes[ours], value, least, MOST) - (least - 1)
        if fields.get("d_embedding") == fields["d_model"] and not self.always_projected:
            fields["d_embedding"] = 0  # no projection
        if self.layer_groups:
            runs = fields["n_layers"]  # config.json counts runs of groups, not single layers
            groups = checks.whole(self.layer_groups, data.get(self.layer_groups, 1), 1, runs)
            layers = checks.whole(self.group_layers, data.get(self.group_layers, 1), 1, MOST)
            fields |= {"n_layers": runs * layers, "sharing": Sharing(groups, layers)}
        if self.eps:
            fields["eps"] = checks.positive(self.eps, data.get(self.eps, self.constants.get("eps", 1e-12)))
        if self.token_types:
            fields["n_token_types"] = checks.whole(self.token_types, data.get(self.token_types, 2), 1, MOST)
        own = self.own_fields(data, head, fields["n_layers"])
        if causal or self.constants.get("causal"):
            fields["causal"] = causal
            fields |= read_text_ids({**self.ids, **data})
            if not causal and own.get("causal", True) and _has_window(own):
                raise NpformerError("is_causal: False is not supported for a model with a sliding window")
        return self.config(
            head,
            **fields | own,
            activation=read_activation(self.activation, data if self.activation else {}, self.usual_activation),
            labels=read_labels(head, data),
            problem_type=data.get("problem_type"),
            tied=checks.boolean("tie_word_embeddings", tied),
        )

    def _is_causal(self, data: Mapping[str, Any], head: str) -> bool:
        """Whether attention is causal. In a family of encoders, a next-token head requires `is_decoder`.

        If `is_causal` is False, a decoder is used as an encoder, as in gte-Qwen2. Encoders ignore `is_causal`, as in
        Transformers.
        """
        given, always = checks.boolean("is_decoder", data.get("is_decoder", False)), "causal" in self.constants
        classes = [name for name, each in self.architectures.items() if each == "causal-lm" and not always]
        if head == "causal-lm" and not (given or always):
            raise NpformerError(
                "is_decoder: expected True, because a causal-lm model predicts each token from earlier tokens, "
                f"got False; for masked words use {first(self.architectures, 'masked-lm')}"
            )
        if given and not (classes and head in ("causal-lm", "base")):
            other = f"; in this family only {classes[0]} supports True" if classes else ""
            raise NpformerError(f"is_decoder: expected False for a {head} model, got True{other}")
        if not (given or always):
            return False
        causal = checks.boolean("is_causal", data.get("is_causal", True))
        if not causal and (given or head == "causal-lm"):
            raise NpformerError(
                "is_causal: False is only supported for a decoder without a next-token head, because its tokens attend "
                "to later tokens; load it with head='base'"
            )
        return causal

    def named_head(self, data: Mapping[str, Any]) -> str | None:
        """As in `Family`, but a decoder with `is_causal` False has no next-token head, because it sees later tokens."""
        head = super().named_head(data)
        sees_later = "causal" in self.constants and data.get("is_causal") is False
        return "base" if sees_later and head == "causal-lm" else head

    def layer_count(self, data: Mapping[str, Any]) -> int:
        count = data.get(self.sizes["n_layers"])
        return count if type(count) is int and count <= MOST else 0  # `read_config` rejects larger values

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        """Fields of `Config` that only this subclass reads. Its `write_config` must write the same fields."""
        return {}

    def write_config(self, config: Config) -> dict[str, Any]:
        data: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.architecture(config)]}
        data |= self.settings
        sizes = {"max_length": config.n_positions, "d_embedding": config.table_width}
        if config.sharing:
            sizes["n_layers"] = config.n_layers // config.sharing.layers
            data |= {self.layer_groups: config.sharing.groups, self.group_layers: config.sharing.layers}
        for ours, theirs in self.sizes.items():
            data[theirs] = sizes.get(ours) or getattr(config, ours)
        if self.activation:
            data[self.activation] = first(ACTIVATIONS, config.activation)
        data["tie_word_embeddings"] = config.tied
        if self.eps:
            data[self.eps] = config.eps
        if self.token_types:
            data[self.token_types] = config.n_token_types
        if self.padding:
            data[self.padding] = config.pad_id
        if config.causal:
            data |= write_text_ids(config) | ({} if self.constants.get("causal") else {"is_decoder": True})
        elif self.constants.get("causal"):
            data |= write_text_ids(config) | {"is_causal": False}
        data |= write_labels(config)
        if config.problem_type:
            data["problem_type"] = config.problem_type
        return data

    # --- the model ---------------------------------------------------------------------------------------------------

    def embeddings(self, config: Config) -> Embeddings:
        norm = self.norm(config) if "embeddings.norm" in self.encoder else None
        projected = self.always_projected or config.table_width != config.d_model
        return embeddings_of(config, norm, config.vocab_size, projected)

    def head_groups(self, head: str) -> Collection[str]:
        return self.heads[head]

    # --- weights -----------------------------------------------------------------------------------------------------

    def weights(self, config: Config, head: str) -> dict[str, Group]:
        """As in `Family`, in the order of the table."""
        found = super().weights(config, head)
        return {group: found[group] for group in self._modules(config, head) if group in found} | found

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        modules, sources, tensors = self._modules(config, head), {}, dict[tuple[str, str], list[str]]()
        for group, module in modules.items():  # one tensor may contain several groups of a layer
            tensors.setdefault((_layer(group), module), []).append(group)
        for ours, (group, array) in arrays.items():
            if group not in modules:
                raise NpformerError(f"{group}: the files of a {config.model_type} model have no such weights")
            module = modules[group]
            name = f"{module}.{array}"
            twin = self.twins.get(name)
            names = tuple(self._written(each, config) for each in (name, twin) if each)
            parts = tensors[_layer(group), module]
            written = names[1:] if twin and config.tied else names
            is_conv = any(module.endswith(each) for each in self.in_out)
            alone: tuple[str, ...] = ()
            if other := self._other_module(group, config):
                alone = (self._written(f"{other}.{array}", config),)
            if len(parts) > 1:
                sources[ours] = Source(names, self.part(config, parts, group), is_conv, written, apart=alone)
            else:
                sources[ours] = Source(alone + names, None, is_conv, written)
        return sources

    def _other_module(self, group: str, config: Config) -> str:
        """The module of a group in Transformers if files use a different name, else ""."""
        layer = _layer(group)
        pattern = group.replace(f"layers.{layer}.", "layers.*.", 1) if layer else group
        return self.in_layer(self.modules[pattern], config, int(layer or 0)) if pattern in self.modules else ""

    def _modules(self, config: Config, head: str) -> dict[str, str]:
        """Maps each group of weights to its module, for all groups that are possible with this head."""
        modules = {}
        for ours, theirs in {**self.encoder, **self.heads[head]}.items():
            for layer in range(config.n_layers) if "*" in ours else [0]:
                modules[ours.replace("*", str(layer))] = self.in_layer(theirs, config, layer)
        return modules

    def in_layer(self, pattern: str, config: Config, layer: int) -> str:
        if not self.layer_groups:
            return super().in_layer(pattern, config, layer)
        group, place = config.group_of(layer)
        return pattern.replace("*", str(group), 1).replace("*", str(place), 1)

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        return frozenset(self._written(name, config) for name in self.buffers)

    def current(self, name: str, known: Container[str]) -> str:
        """As in `Family`. Also renames gamma and beta in older files to weight and bias."""
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return super().current(name, known)

    def optional(self, config: Config) -> frozenset[str]:
        return self.lacking if config.head == "base" else frozenset()

    def _written(self, name: str, config: Config) -> str:
        """The name in a new file, without the prefix if the model has no head."""
        return name.removeprefix(self.prefix) if config.head == "base" else name

    # --- training ----------------------------------------------------------------------------------------------------

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        rates = dict.fromkeys(self.dropped or self.build(config, config.head).dropped, rate) | {
            "*attention.weights": attention
        }
        for stage in self.read.get(config.head, "").split():
            last = stage.replace("*", str(config.n_layers - 1))
            rates[last] = self.read_rate.get(config.head, rate) if head is None else head
        return rates


def decoder_classes(name: str, answers: bool = True) -> dict[str, str]:
    """The head of each Transformers class that begins with `name`. answers: include question answering."""
    heads = {"Model": "base", "ForCausalLM": "causal-lm", "ForSequenceClassification": "sequence-classification"}
    heads |= {"ForTokenClassification": "token-classification", "ForQuestionAnswering": "question-answering"}
    return {name + end: head for end, head in heads.items() if answers or head != "question-answering"}


def _has_window(own: Mapping[str, Any]) -> bool:
    """Whether any layer has a window, given fields of a `Config`."""
    local = own["local"].mechanisms if own.get("local") else ()
    return any(isinstance(each, Window) for each in (*own.get("mechanisms", ()), *local))


def usual_length(positions: int) -> dict[str, int]:
    """The default length of the longest text, as in Transformers. No table has this size."""
    return {SIZES["max_length"]: positions}


def _layer(group: str) -> str:
    """The number of the layer that contains a group, or "" for a group outside the layers."""
    return group.split(".")[1] if group.startswith("layers.") else ""
