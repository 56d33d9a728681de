"""The keywords that `pipeline` takes for each task, as type checkers and editors read them.

A class has the fields of a task's options, whose values are checked in the task's file; those of `Writing` have the
settings of generation too. Tests hold the two together. No program imports this file when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from npformer.common.limits import Limits


class Loading(TypedDict, total=False):
    """Arguments of `load`, and other libraries' keywords, most of which `ignored_keywords.py` ignores."""

    revision: str | None
    offline: bool
    dtype: Any
    limits: Limits
    mapped: bool
    allow_nonfinite: bool
    truncation: bool | str | None
    show_progress_bar: bool | None
    local_files_only: bool | None
    attn_implementation: Any
    batch_size: Any
    cache_dir: Any
    config: Any
    device: Any
    device_map: Any
    feature_extractor: Any
    framework: Any
    grouped_entities: Any
    image_processor: Any
    low_cpu_mem_usage: Any
    model_kwargs: Any
    num_workers: Any
    padding: Any
    processor: Any
    return_all_scores: Any
    text_pair: Any
    token: Any
    tokenize_kwargs: Any
    tokenizer: Any
    tokenizer_kwargs: Any
    torch_dtype: Any
    trust_remote_code: Any
    use_auth_token: Any
    use_cache: Any
    use_fast: Any
    apply_softmax: Any
    backend: Any
    cache_folder: Any
    chunk_size: Any
    convert_to_numpy: Any
    convert_to_sparse_tensor: Any
    convert_to_tensor: Any
    output_value: Any
    pool: Any
    precision: Any
    processor_kwargs: Any
    save_to_cpu: Any


class TaskKeywords(Loading, total=False):
    """Options of `Options`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool


class ClassificationKeywords(TaskKeywords, total=False):
    """Options of `ClassificationOptions`."""

    top_k: Any
    function_to_apply: str | None


class ZeroShotKeywords(TaskKeywords, total=False):
    """Options of `ZeroShotOptions`."""

    candidate_labels: Any
    hypothesis_template: str
    multi_label: bool


class TokenKeywords(TaskKeywords, total=False):
    """Options of `TokenOptions`."""

    aggregation_strategy: str
    ignore_labels: Sequence[str]


class AnswerKeywords(TaskKeywords, total=False):
    """Options of `AnswerOptions`."""

    top_k: int
    doc_stride: int | None
    max_answer_len: int
    max_seq_len: int | None
    handle_impossible_answer: bool
    align_to_words: bool


class FillKeywords(TaskKeywords, total=False):
    """Options of `FillOptions`."""

    top_k: int
    targets: Any


class FeatureKeywords(TaskKeywords, total=False):
    """Options of `FeatureOptions`."""

    return_tensors: bool


class PromptKeywords(TaskKeywords, total=False):
    """Options of `PromptOptions`."""

    prompt: str | None
    prompt_name: str | None


class EmbeddingKeywords(PromptKeywords, total=False):
    """Options of `EmbeddingOptions`."""

    normalize_embeddings: bool
    truncate_dim: int | None


class SparseKeywords(PromptKeywords, total=False):
    """Options of `SparseOptions`."""

    max_active_dims: int | None


class RankingKeywords(PromptKeywords, total=False):
    """Options of `RankingOptions`, and another name of one."""

    function_to_apply: str
    activation_fn: Any


class WritingKeywords(TaskKeywords, total=False):
    """Options of `WritingOptions`."""

    max_new_tokens: int | None
    min_new_tokens: int | None
    num_beams: int | None
    num_return_sequences: int | None
    length_penalty: float | None
    early_stopping: bool | str | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    top_h: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    seed: int | None
    sequence_bias: Any
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: Any
    suppress_tokens: Any
    begin_suppress_tokens: Any
    forced_bos_token_id: int | None
    forced_eos_token_id: Any
    exponential_decay_length_penalty: Any
    renormalize_logits: bool | None
    decoder_start_token_id: Any
    eos_token_id: Any
    pad_token_id: Any
    min_length: Any


class TextGenerationKeywords(WritingKeywords, total=False):
    """Options of `TextGenerationOptions`, and other names of some."""

    return_full_text: bool
    stop_strings: Sequence[str] | str
    stop_sequence: Sequence[str] | str
    stop: Sequence[str] | str
    handle_long_generation: str | None


class TextToTextKeywords(WritingKeywords, total=False):
    """Options of `TextToTextOptions`."""

    to: str | None


class AnyKeywords(Loading, total=False):
    """Options of every task, where the task is not known."""

    long: Any
    stride: Any
    max_length: Any
    progress: Any
    top_k: Any
    function_to_apply: Any
    candidate_labels: Any
    hypothesis_template: Any
    multi_label: Any
    aggregation_strategy: Any
    ignore_labels: Any
    doc_stride: Any
    max_answer_len: Any
    max_seq_len: Any
    handle_impossible_answer: Any
    align_to_words: Any
    targets: Any
    return_tensors: Any
    prompt: Any
    prompt_name: Any
    normalize_embeddings: Any
    truncate_dim: Any
    max_active_dims: Any
    activation_fn: Any
    return_full_text: Any
    stop_strings: Any
    stop_sequence: Any
    stop: Any
    handle_long_generation: Any
    to: Any
    max_new_tokens: Any
    min_new_tokens: Any
    num_beams: Any
    num_return_sequences: Any
    length_penalty: Any
    early_stopping: Any
    do_sample: Any
    temperature: Any
    top_p: Any
    top_h: Any
    min_p: Any
    typical_p: Any
    epsilon_cutoff: Any
    eta_cutoff: Any
    seed: Any
    sequence_bias: Any
    repetition_penalty: Any
    no_repeat_ngram_size: Any
    bad_words_ids: Any
    suppress_tokens: Any
    begin_suppress_tokens: Any
    forced_bos_token_id: Any
    forced_eos_token_id: Any
    exponential_decay_length_penalty: Any
    renormalize_logits: Any
    decoder_start_token_id: Any
    eos_token_id: Any
    pad_token_id: Any
    min_length: Any
