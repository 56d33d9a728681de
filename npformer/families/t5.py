"""T5 (Raffel et al., 2020), with T5 v1.1 and FLAN-T5, which have the same model_type, and mT5 (Xue et al., 2021).

These models are pre-norm stacks with RMSNorm, without biases or position tables. Each stack has a table of relative
biases, which all its layers add to the scores. Scores are not divided by sqrt(K). T5 scales rows by 1 / sqrt(D) before
the projection to the vocabulary. v1.1 and mT5 do not scale rows, and their feed-forward networks are gated. The base
model is only the encoder, as in sentence-t5 and GTR.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import LABELLED, MOST, Config, Decoder, Positions
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks import Attention, Block, CrossAttention, FeedForward, Gated
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Causal, RelativeBias
from npformer.engine.norms.norm import Norm
from npformer.engine.norms.root_mean_square import RMSNorm
from npformer.families import base
from npformer.families.base import PieceOrder, Source
from npformer.families.vaswani import Transformer, check_one_end, residual_rates

#: Maps npformer's fields to fields of config.json.
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "n_heads": "num_heads",
    "n_layers": "num_layers",
    "d_ffn": "d_ff",
}
#: Heads that need only the encoder.
ALONE = ("base", "token-classification")
#: For each head, the module of each group of weights.
TOP = {
    "base": {},
    "translation": {"head.output": "lm_head"},
    "sequence-classification": {"pooler": "classification_head.dense", "head.output": "classification_head.out_proj"},
    "token-classification": {"head.output": "classifier"},
    "question-answering": {"head.output": "qa_outputs"},
}
#: Heads of classes in which the model is in a module "transformer".
WITHIN = ("sequence-classification", "token-classification")
#: Maps each block of a layer to its module.
BLOCKS = {"attention": "SelfAttention", "cross_attention": "EncDecAttention", "ffn": "DenseReluDense"}
LINEAR = {"query": "q", "key": "k", "value": "v", "output": "o"}
INNER = {"hidden": "wi", "gate": "wi_0", "up": "wi_1", "output": "wo"}
#: For each stack, the blocks of a layer, in order.
INDEX = {"encoder": ("attention", "ffn"), "decoder": ("attention", "cross_attention", "ffn")}
#: Groups of a stack outside its layers.
ENDS = {"relative_bias": "block.0.layer.0.SelfAttention.relative_attention_bias", "norm": "final_layer_norm"}

SCALE = "scale_decoder_outputs"
BUCKETS, DISTANCE = "relative_attention_num_buckets", "relative_attention_max_distance"
#: Maximum number of tokens in a text. T5 itself has no limit.
LONGEST = 2**20


class T5Family(Transformer):
    """The family of T5."""

    scales: bool = True  # whether scale_decoder_outputs is read from config.json; otherwise rows are never scaled

    # --- config.json -------------------------------------------------------------------------------------------------

    def config(self, head: str, **fields: Any) -> Config:
        """As in `Family`. Both stacks have the same sizes, except for the number of layers."""
        own: dict[str, Any] = {"max_length": LONGEST}
        if head in ALONE:
            own |= {"shared": False, "decoder": Decoder()}
        elif decoder := fields.get("decoder"):
            sizes = {name: fields[name] for name in ("n_heads", "d_ffn", "vocab_size")}
            own["decoder"] = replace(decoder, **sizes)
        if head != "translation":
            own |= {"scale_output": False}
        return super().config(head, **{**fields, **own})

    def check(self, config: Config) -> Config:
        checks.whole("num_layers", config.n_layers, 1, MOST)
        if config.gated and config.activation == "gelu":
            raise NpformerError("activation: expected 'gelu_tanh' for a gated T5 model, got 'gelu'")
        check_one_end(config)
        for each in config.mechanisms:
            replace(each, bidirectional=not config.decoder).check(config)
        return super().check(config)

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        head = head or self.head_of(data)
        fields = base.read_fields({ours: (theirs, ...) for ours, theirs in SIZES.items()}, data, self.model_type)
        width = checks.whole("d_kv", data.get("d_kv", 64), 1, MOST)
        n_heads = checks.whole(SIZES["n_heads"], fields["n_heads"], 1, MOST)
        pad = data.get("pad_token_id", 0)
        start, depth = data.get("decoder_start_token_id"), data.get("num_decoder_layers")
        decoder = Decoder(
            fields["n_layers"] if depth is None else checks.whole("num_decoder_layers", depth, 1, MOST),
            start_id=pad or 0 if start is None else start,
            end_ids=base.read_ids("eos_token_id", data.get("eos_token_id", 1)),
        )
        tied = checks.boolean("tie_word_embeddings", data.get("tie_word_embeddings", True))
        return self.config(
            head,
            **fields | self._read_feed_forward(data),
            head_width=0 if width * n_heads == fields["d_model"] else width,
            eps=checks.positive("layer_norm_epsilon", data.get("layer_norm_epsilon", 1e-6)),
            mechanisms=(_read_bias(data),),
            tied=tied,
            scale_output=checks.boolean(SCALE, data.get(SCALE, tied)) and self.scales,
            pad_id=pad,
            decoder=decoder,
            labels=base.read_labels(head, data),
            problem_type=data.get("problem_type") if head in LABELLED else None,
        )

    def _read_feed_forward(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The activation, and whether the FFN is gated. T5's "gated-gelu" is the tanh approximation."""
        usual = "gated-gelu" if self.constants["gated"] else "relu"
        gate, _, name = str(data.get("feed_forward_proj", usual)).rpartition("-")
        if gate not in ("", "gated") or name not in base.ACTIVATIONS:
            given, known = checks.shown(data["feed_forward_proj"]), ", ".join(base.ACTIVATIONS)
            raise NpformerError(
                f"feed_forward_proj: expected ACTIVATION or gated-ACTIVATION, got {given}; activations: {known}"
            )
        is_tanh = gate and name == "gelu"
        return {"gated": bool(gate), "activation": "gelu_tanh" if is_tanh else base.ACTIVATIONS[name]}

    def write_config(self, config: Config) -> dict[str, Any]:
        [bias] = config.mechanisms
        name = base.first(base.ACTIVATIONS, config.activation)
        ends = config.decoder.end_ids or (1,)
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(config)],
            **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
            "d_kv": config.d_head,
            "num_decoder_layers": config.decoder.n_layers or config.n_layers,
            BUCKETS: bias.n_buckets,
            DISTANCE: bias.max_distance,
            "layer_norm_epsilon": config.eps,
            "feed_forward_proj": ("gated-gelu" if name == "gelu_new" else f"gated-{name}") if config.gated else name,
            "tie_word_embeddings": config.tied,
            SCALE: config.scale_output,
            "is_encoder_decoder": bool(config.decoder),
            "pad_token_id": config.pad_id,
            "eos_token_id": ends[0] if len(ends) == 1 else list(ends),
            "decoder_start_token_id": config.decoder.start_id,
            **base.write_labels(config),
            **({"problem_type": config.problem_type} if config.problem_type else {}),
        }

    # --- the model ---------------------------------------------------------------------------------------------------

    def norm(self, config: Config) -> Norm:
        return RMSNorm(config.eps)

    def stack(self, config: Config) -> Stack:
        mechanisms = [each.for_model(config) for each in config.mechanisms]
        return self._stack(config, config, {"attention": _attention(config, *mechanisms)})

    def decoder_stack(self, config: Config) -> Stack:
        mechanisms = [replace(each.for_model(config), bidirectional=False) for each in config.mechanisms]
        crossed = CrossAttention(config.n_heads, False, config.d_head, config.score_scale or None)
        blocks = {"attention": _attention(config, *mechanisms, Causal()), "cross_attention": crossed}
        return self._stack(config, config.decoder, blocks)

    def _stack(self, config: Config, sizes: Config | Decoder, blocks: Mapping[str, Block]) -> Stack:
        feed = (Gated if config.gated else FeedForward)(ACTIVATIONS[config.activation], sizes.d_ffn, False)
        layer = Layer((*blocks.items(), ("ffn", feed)), self.norm(config), norm_first=True)
        return Stack((layer,) * sizes.n_layers, self.norm(config))

    def head_groups(self, head: str) -> Collection[str]:
        return TOP[head]

    # --- weights -----------------------------------------------------------------------------------------------------

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        found = {}
        for ours, (group, array) in arrays.items():
            names = [f"{each}.{array}" for each in _modules(group, head, config)]
            if head in WITHIN and group not in TOP[head]:
                names = [self.prefix + names[0], *names]
            found[ours] = Source(tuple(names))
        return found

    def current(self, name: str, known: Container[str]) -> str:
        return name.removeprefix(self.prefix)

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        """As in `Family`: relative biases of cross-attention, `lm_head`, and the decoder without `config.decoder`."""
        unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        return frozenset({unused, "lm_head.weight"} if config.decoder else {"decoder.*", "lm_head.weight"})

    # --- training ----------------------------------------------------------------------------------------------------

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        inner = "*ffn.gated" if config.gated else "*ffn.activation"
        last = ("encoder.norm", "decoder.norm") if config.decoder else ("norm",)
        dropped = residual_rates(rate) | dict.fromkeys((inner, *last), rate) | {"*attention.weights": attention}
        return dropped | ({"pooled": head} if config.head == "sequence-classification" and head is not None else {})


def _attention(config: Config, *mechanisms: Any) -> Attention:
    return Attention(config.n_heads, mechanisms, False, d_head=config.d_head, scale=config.score_scale or None)


def _read_bias(data: Mapping[str, Any]) -> RelativeBias:
    buckets = checks.whole(BUCKETS, data.get(BUCKETS, 32), 4, MOST)
    return RelativeBias(buckets, max_distance=checks.whole(DISTANCE, data.get(DISTANCE, 128), 1, MOST))


def _modules(group: str, head: str, config: Config) -> list[str]:
    """The modules that may contain the weights of a group. The first module is written."""
    if group == "head.output" and head == "translation" and not config.tied:
        return ["lm_head", "shared"]  # the token table replaces a missing lm_head, as in Transformers 5
    if group in TOP[head]:
        return [TOP[head][group]]
    side, _, rest = group.partition(".")
    if side not in INDEX:
        side, rest = "encoder", group
    if rest == "embeddings.token":
        return ["shared"] * (side == "encoder") + [f"{side}.embed_tokens"]
    if rest in ENDS:
        return [f"{side}.{ENDS[rest]}"]
    _, layer, within = rest.split(".", 2)
    block, _, part = within.partition(".")
    at = f"{side}.block.{layer}.layer.{INDEX[side].index(block.removesuffix('_norm'))}"
    if not part:
        return [f"{at}.layer_norm"]
    return [f"{at}.{BLOCKS[block]}.{(INNER if block == 'ffn' else LINEAR)[part]}"]


_CLASSES = {
    "ForConditionalGeneration": "translation",
    "EncoderModel": "base",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "Model": "translation",
    "WithLMHeadModel": "translation",
}


def _family(kind: type[T5Family], model_type: str, name: str, gated: bool) -> T5Family:
    return kind(
        model_type=model_type,
        architectures={f"{name}{each}": head for each, head in _CLASSES.items()},
        prefix="transformer.",
        special_tokens={"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"},
        single="$A eos",
        pair="$A eos $B eos",
        pieces=PieceOrder(sentinels=True),
        constants={
            "positions": Positions("none"), "norm_first": True, "final_norm": True, "bias": False, "gated": gated,
            "score_scale": 1.0, "shared": True, "mechanisms": (RelativeBias(32),), "eps": 1e-6,
            "activation": "gelu_tanh" if gated else "relu",
        },
        unbiased=frozenset({"translation"}),
        ends_sources=True,
        writes="text2text-generation",
        stages={f"{side}.embed_tokens": f"{side}.embeddings.token" for side in INDEX},
    )  # fmt: skip


class MT5Family(T5Family):
    """The family of mT5, which never scales rows before the projection to the vocabulary."""

    scales = False


T5 = _family(T5Family, "t5", "T5", gated=False)
MT5 = _family(MT5Family, "mt5", "MT5", gated=True)
