"""Runs transformers' models entirely in float64, including these steps, for which transformers always uses float32:

* ModernBERT: the angles of the rotary embeddings, the rotation, and the softmax of its eager attention
* Nomic BERT: the angles
* DeBERTa: the square root that divides scores
* T5: RMSNorm
* Llama, similar families, and Gemma: RMSNorm, the angles and the softmax
* GPT-NeoX: the angles and the softmax
* OPT and BLOOM: the softmax; for BLOOM also the GELU, in which sqrt(2 / pi) has only eight digits

Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers.modeling_rope_utils import dynamic_rope_update
from transformers.models import bloom, gemma, gemma2, gemma3, gpt_neox, llama, mistral, opt, phi3, qwen2, qwen3, smollm3
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta
from transformers.models.modernbert import modeling_modernbert as modeling
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.nomic_bert.modeling_nomic_bert import NomicBertRotaryEmbedding as Nomic
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.t5.modeling_t5 import T5LayerNorm

_LLAMAS = {
    "Llama": llama.modeling_llama, "Mistral": mistral.modeling_mistral, "Qwen2": qwen2.modeling_qwen2,
    "Qwen3": qwen3.modeling_qwen3, "Gemma": gemma.modeling_gemma, "Gemma2": gemma2.modeling_gemma2,
    "Gemma3": gemma3.modeling_gemma3, "Phi3": phi3.modeling_phi3, "SmolLM3": smollm3.modeling_smollm3,
    "Olmo2": modeling_olmo2,
}  # fmt: skip


@contextmanager
def in_double() -> Iterator[None]:
    """Inside the block, these steps use float64. Convert models with `double()`, which also converts frequencies."""
    rotary = modeling.ModernBertRotaryEmbedding
    before = modeling.apply_rotary_pos_emb, modeling.eager_attention_forward, rotary.forward
    root_before, deberta.scaled_size_sqrt = deberta.scaled_size_sqrt, root
    nomic_before, Nomic.forward = Nomic.forward, _nomic_angles
    modeling.apply_rotary_pos_emb, modeling.eager_attention_forward, rotary.forward = _rotated, _attention, _angles
    try:
        with _norms_in_double(), ExitStack() as stack:
            for owner, name, step in _steps():
                stack.enter_context(mock.patch.object(owner, name, step))
            yield
    finally:
        modeling.apply_rotary_pos_emb, modeling.eager_attention_forward, rotary.forward = before
        deberta.scaled_size_sqrt, Nomic.forward = root_before, nomic_before


def _steps() -> Iterator[tuple[Any, str, Any]]:
    """Yields (owner, attribute, replacement) for each step of GPT-NeoX, OPT and BLOOM."""
    yield gpt_neox.modeling_gpt_neox, "eager_attention_forward", _attention
    yield gpt_neox.modeling_gpt_neox.GPTNeoXRotaryEmbedding, "forward", _scaled_angles
    yield opt.modeling_opt, "eager_attention_forward", _attention
    softmax = SimpleNamespace(**vars(torch.nn.functional))
    softmax.softmax = lambda x, dim, dtype: torch.softmax(x, dim)
    yield bloom.modeling_bloom, "F", softmax
    yield bloom.modeling_bloom.BloomGelu, "forward", lambda self, x: torch.nn.functional.gelu(x, approximate="tanh")


@contextmanager
def _norms_in_double() -> Iterator[None]:
    before = []
    for name, module in _LLAMAS.items():
        norm, rotary = getattr(module, f"{name}RMSNorm"), getattr(module, f"{name}RotaryEmbedding")
        before.append((module, norm, rotary, norm.forward, rotary.forward, module.eager_attention_forward))
        is_gemma = name.startswith("Gemma")
        norm.forward = _zero_centred_norm if is_gemma else _rms_norm
        rotary.forward = _angles_of_kinds if name == "Gemma3" else _scaled_angles
        module.eager_attention_forward = _grouped_attention
    of_t5 = [(norm, norm.forward) for norm in (T5LayerNorm, MT5LayerNorm)]
    for norm, _ in of_t5:
        norm.forward = _rms_norm
    try:
        yield
    finally:
        for module, norm, rotary, *forwards in before:
            norm.forward, rotary.forward, module.eager_attention_forward = forwards
        for norm, forward in of_t5:
            norm.forward = forward


def _rms_norm(self: Any, x: Any) -> Any:
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def _zero_centred_norm(self: Any, x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


@dynamic_rope_update
def _scaled_angles(self: Any, x: Any, position_ids: Any) -> tuple[Any, Any]:
    cos, sin = _nomic_angles(self, x, position_ids)
    return cos * self.attention_scaling, sin * self.attention_scaling


def _angles_of_kinds(self: Any, x: Any, position_ids: Any, layer_type: str) -> tuple[Any, Any]:
    cos, sin = _angles(self, x, position_ids, layer_type)
    magnitude = getattr(self, f"{layer_type}_attention_scaling")
    return cos * magnitude, sin * magnitude


def _grouped_attention(
    module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, softcap: float | None = None, **_: Any
) -> tuple[Any, Any]:
    k, v = (each.repeat_interleave(module.num_key_value_groups, dim=1) for each in (k, v))
    return _attention(module, q, k, v, mask, scaling, softcap)


def root(query: Any, parts: int) -> Any:
    """Returns sqrt(parts * K)."""
    return torch.tensor(float(query.shape[-1] * parts), dtype=torch.float64).sqrt()


def _nomic_angles(self: Any, x: Any, position_ids: Any) -> tuple[Any, Any]:
    angles = position_ids[..., None].double() * self.inv_freq.double()
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def _angles(self: Any, x: Any, position_ids: Any, layer_type: str) -> tuple[Any, Any]:
    angles = position_ids[..., None].double() * getattr(self, f"{layer_type}_inv_freq").double()
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def _rotated(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    half = modeling.rotate_half
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def _attention(
    module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, softcap: float | None = None, **_: Any
) -> tuple[Any, Any]:
    scores = q @ k.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    return (weights @ v).transpose(1, 2).contiguous(), weights
