"""The types of `pipeline`: each task's class, and the keywords that the task takes.

A stub of `npformer.tasks.pipelines.pipeline` for type checkers and editors, made from the tasks' declarations by
`python -m tests.support.pipeline_types`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from npformer.common.limits import Limits
from npformer.model import Model, Seq2Seq
from npformer.tasks.feature_extraction import FeatureExtraction
from npformer.tasks.fill_mask import FillMask
from npformer.tasks.multi_vector_embedding import MultiVectorEmbedding
from npformer.tasks.question_answering import QuestionAnswering
from npformer.tasks.sentence_embedding import SentenceEmbedding
from npformer.tasks.sparse_embedding import SparseEmbedding
from npformer.tasks.task import Task
from npformer.tasks.text_classification import TextClassification
from npformer.tasks.text_generation import TextGeneration
from npformer.tasks.text_ranking import TextRanking
from npformer.tasks.text_to_text import Summarization, Text2TextGeneration, Translation
from npformer.tasks.token_classification import TokenClassification
from npformer.tasks.zero_shot_classification import ZeroShotClassification

class Loading(TypedDict, total=False):
    """Keywords of every task."""

    revision: str | None
    offline: bool
    dtype: Any
    limits: Limits
    mapped: bool
    allow_nonfinite: bool
    keep: str
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
    max_question_len: Any
    model_kwargs: Any
    num_workers: Any
    padding: Any
    processor: Any
    return_all_scores: Any
    stream: Any
    streamer: Any
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

class ClassificationKeywords(Loading, total=False):
    """Keywords of `ClassificationOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    top_k: Any
    function_to_apply: str | None

class ZeroShotKeywords(Loading, total=False):
    """Keywords of `ZeroShotOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    candidate_labels: Any
    hypothesis_template: str
    multi_label: bool

class TokenKeywords(Loading, total=False):
    """Keywords of `TokenOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    aggregation_strategy: str
    ignore_labels: Sequence[str]

class AnswerKeywords(Loading, total=False):
    """Keywords of `AnswerOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    top_k: int
    doc_stride: int | None
    max_answer_len: int
    max_seq_len: int | None
    handle_impossible_answer: bool
    align_to_words: bool

class FillKeywords(Loading, total=False):
    """Keywords of `FillOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    top_k: int
    targets: Any

class FeatureKeywords(Loading, total=False):
    """Keywords of `FeatureOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    return_tensors: bool

class EmbeddingKeywords(Loading, total=False):
    """Keywords of `EmbeddingOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    prompt: str | None
    prompt_name: str | None
    normalize_embeddings: bool
    truncate_dim: int | None

class SparseKeywords(Loading, total=False):
    """Keywords of `SparseOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    prompt: str | None
    prompt_name: str | None
    max_active_dims: int | None

class PromptKeywords(Loading, total=False):
    """Keywords of `PromptOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    prompt: str | None
    prompt_name: str | None

class RankingKeywords(Loading, total=False):
    """Keywords of `RankingOptions`."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    prompt: str | None
    prompt_name: str | None
    function_to_apply: str
    activation_fn: Any

class TextToTextKeywords(Loading, total=False):
    """Keywords of `TextToTextOptions`."""

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
    logprobs: int | None
    decoder_start_token_id: Any
    eos_token_id: Any
    pad_token_id: Any
    max_length: int | None
    min_length: Any
    long: str
    stride: int | None
    progress: bool
    to: str | None

class TextGenerationKeywords(Loading, total=False):
    """Keywords of `TextGenerationOptions`."""

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
    logprobs: int | None
    decoder_start_token_id: Any
    eos_token_id: Any
    pad_token_id: Any
    max_length: int | None
    min_length: Any
    long: str
    stride: int | None
    progress: bool
    return_full_text: bool
    stop_strings: Sequence[str] | str
    chat: bool
    system: str | None
    chat_template_kwargs: Mapping[str, Any]
    stop_sequence: Sequence[str] | str
    stop: Sequence[str] | str
    tokenizer_encode_kwargs: Mapping[str, Any]
    handle_long_generation: str | None

class AnyKeywords(Loading, total=False):
    """Keywords of all tasks, where the task is not known."""

    long: str
    stride: int | None
    max_length: int | None
    progress: bool
    top_k: Any
    function_to_apply: Any
    candidate_labels: Any
    hypothesis_template: str
    multi_label: bool
    aggregation_strategy: str
    ignore_labels: Sequence[str]
    doc_stride: int | None
    max_answer_len: int
    max_seq_len: int | None
    handle_impossible_answer: bool
    align_to_words: bool
    targets: Any
    return_tensors: bool
    prompt: str | None
    prompt_name: str | None
    normalize_embeddings: bool
    truncate_dim: int | None
    max_active_dims: int | None
    activation_fn: Any
    max_new_tokens: int | None
    min_new_tokens: int | None
    num_beams: int | None
    num_return_sequences: int | None
    length_penalty: float | None
    early_stopping: bool | str | None
    do_sample: bool | None
    temperature: float | None
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
    logprobs: int | None
    decoder_start_token_id: Any
    eos_token_id: Any
    pad_token_id: Any
    min_length: Any
    to: str | None
    return_full_text: bool
    stop_strings: Sequence[str] | str
    chat: bool
    system: str | None
    chat_template_kwargs: Mapping[str, Any]
    stop_sequence: Sequence[str] | str
    stop: Sequence[str] | str
    tokenizer_encode_kwargs: Mapping[str, Any]
    handle_long_generation: str | None

@overload
def pipeline(
    task: Literal["text-classification", "sentiment-analysis"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[ClassificationKeywords],
) -> TextClassification: ...
@overload
def pipeline(
    task: Literal["zero-shot-classification"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[ZeroShotKeywords],
) -> ZeroShotClassification: ...
@overload
def pipeline(
    task: Literal["token-classification", "ner"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[TokenKeywords],
) -> TokenClassification: ...
@overload
def pipeline(
    task: Literal["question-answering"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[AnswerKeywords],
) -> QuestionAnswering: ...
@overload
def pipeline(
    task: Literal["fill-mask"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[FillKeywords],
) -> FillMask: ...
@overload
def pipeline(
    task: Literal["feature-extraction"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[FeatureKeywords],
) -> FeatureExtraction: ...
@overload
def pipeline(
    task: Literal["sentence-embedding"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[EmbeddingKeywords],
) -> SentenceEmbedding: ...
@overload
def pipeline(
    task: Literal["sparse-embedding"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[SparseKeywords],
) -> SparseEmbedding: ...
@overload
def pipeline(
    task: Literal["multi-vector-embedding"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[PromptKeywords],
) -> MultiVectorEmbedding: ...
@overload
def pipeline(
    task: Literal["text-ranking", "rerank"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[RankingKeywords],
) -> TextRanking: ...
@overload
def pipeline(
    task: Literal["translation"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[TextToTextKeywords],
) -> Translation: ...
@overload
def pipeline(
    task: Literal["summarization"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[TextToTextKeywords],
) -> Summarization: ...
@overload
def pipeline(
    task: Literal["text2text-generation"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[TextToTextKeywords],
) -> Text2TextGeneration: ...
@overload
def pipeline(
    task: Literal["text-generation"],
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[TextGenerationKeywords],
) -> TextGeneration: ...
@overload
def pipeline(
    task: str | None = None,
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[AnyKeywords],
) -> Task:
    """Makes a task from its name. Call the task with one text, a list of texts or a generator.

    Parameters
    ----------
    task : str, optional
        A name in TASKS or an alias ("sentiment-analysis", "ner", "rerank", "translation_en_to_de").
        Without a name, the head in the model's config determines the task.
    model : str, Path or Model, optional
        A bundled model, a folder, a Hugging Face id or a loaded model; text-classification has a default model. If
        config.json in a folder names no class or an unknown class in `architectures`, the model is read with the task's
        head.
    threads : int, optional
        Cores to use; by default all.
    dtype : optional, float32 (the default) or float64, as in `load`; a loaded model keeps its dtype
    revision, offline, limits, mapped, allow_nonfinite, keep : as in `load`, unless the model is already loaded
    **options : options of the task, as defaults for every call; see `Options` and the task's class
        Keywords of transformers.pipeline that change nothing here (batch_size, padding, device="cpu", ...) are
        accepted; local_files_only=True means offline=True, and torch_dtype means dtype.

    Returns
    -------
    Task

    Raises
    ------
    NpformerError
        If the task or an option is unknown, the model does not fit the task, or a loaded model has a different dtype.

    Examples
    --------
    >>> classify = npformer.pipeline("text-classification")
    >>> classify("I love ice cream")["label"]
    'POSITIVE'
    >>> [answer["label"] for answer in classify(["I love ice cream", "not my music"])]
    ['POSITIVE', 'NEGATIVE']
    """
