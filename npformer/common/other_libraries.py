"""Replacements for names and arguments of transformers and sentence-transformers that npformer does not have.

Each kind of object has a table. `tasks/ignored_keywords.py` has the keywords of tasks, most of which are accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from npformer.common.errors import NpformerError

F = TypeVar("F", bound=Callable[..., Any])

#: The page about the differences between versions 4 and 5 of Transformers, and about npformer's choices.
TRANSFORMERS_VERSIONS = "https://github.com/npformer/npformer/blob/main/docs/reference/transformers-versions.md"

_CPU = "everything runs on the CPU; leave it out"
_DTYPE = "use dtype= of npformer.load and pipeline, float32 or float64"
_SAVE = "npformer.training.save(model, folder) writes it; `npformer convert --to torch`, for transformers"
_TRAIN = "`npformer finetune` and npformer.training train models"
_POOL = "encode(texts) uses all cores; `npformer embed --scheduler local:4` uses several processes"
_TRACE = "npformer.trace(model, text) has every layer's output and attention weights"

#: For models and tasks.
_MODEL = {
    **dict.fromkeys(("to", "cpu", "cuda", "device"), _CPU),
    **dict.fromkeys(("half", "float", "double", "bfloat16"), _DTYPE),
    **dict.fromkeys(("eval", "compile", "requires_grad_"), "models only run inference; leave it out"),
    **dict.fromkeys(("save", "save_pretrained", "push_to_hub"), _SAVE),
    **dict.fromkeys(("train", "fit", "zero_grad"), _TRAIN),
}
MODEL = {
    **_MODEL,
    "forward": "call the model itself, model(ids); npformer.trace(model, text) has every stage of one call",
    "from_pretrained": "npformer.load(name) returns a model",
    **dict.fromkeys(("parameters", "named_parameters", "state_dict"), "model.weights is a nested dict of all arrays"),
    "generation_config": "pass the settings to model.generate(ids, max_new_tokens=20, ...)",
    "get_input_embeddings": 'model.weights["embeddings"]["token"]["weight"] is the token table',
    "max_seq_length": "give max_length= to the pipeline; model.config.max_length is the maximum of the model",
    "name_or_path": "model.folder is the folder of the model",
    "num_parameters": "`npformer info MODEL` counts them",
}
TASK = {
    **_MODEL,
    "from_pretrained": 'npformer.pipeline("sentence-embedding", name) makes a task',
    **dict.fromkeys(("config", "num_labels"), "task.model.config is the config of the model, with its labels"),
    **dict.fromkeys(("activation_fn", "default_activation_function"), "task.options.function_to_apply is its name"),
    **dict.fromkeys(("start_multi_process_pool", "encode_multi_process"), _POOL),
    **dict.fromkeys(("parameters", "state_dict"), "task.model.weights is a nested dict of all arrays"),
    **dict.fromkeys(("forward", "preprocess"), "npformer.trace(task.model, text) has every stage of one call"),
    "default_prompt_name": "task.options.prompt_name is the name of the prompt",
    "dtype": "task.model.dtype is the dtype",
    "evaluate": "`npformer evaluate` measures a model on a file of texts",
    "get_max_seq_length": "task.max_seq_length is the maximum number of tokens",
    "intersection": "a * b has the products of the weights of two sparse vectors",
    "max_active_dims": "use task.options.max_active_dims",
    "max_seq_length": "give max_length= to the call or to the pipeline",
    "max_length": "task.options.max_length is the given length, and task.encoder.limit is the maximum number of tokens",
    "predict": "call the task itself, task(texts); use npformer.Pair(a, b) for a pair of texts",
    "similarity_pairwise": "np.diag(task.similarity(a, b)) is the similarity of each row of a to the same row of b",
    "task": "task.name is the name of the task",
    "tokenize": "task.tokenizer.encode_batch(texts) returns an encoding with ids and tokens for each text",
    "truncate_dim": "use task.options.truncate_dim",
}
CONFIG = {
    "from_pretrained": "npformer.load(name).config; `npformer info NAME` reads no weights",
    "architectures": "config.model_type and config.head name the family and the head",
    "hidden_act": "config.activation",
    "hidden_size": "config.d_model",
    "id2label": "config.labels[i] is the label of output i; dict(enumerate(config.labels)) has all labels",
    "intermediate_size": "config.d_ffn",
    "label2id": "config.labels.index(label) is the output of a label",
    "layer_norm_eps": "config.eps",
    "max_position_embeddings": "config.max_length",
    "num_attention_heads": "config.n_heads",
    "num_hidden_layers": "config.n_layers",
    "num_labels": "len(config.labels)",
    "pad_token_id": "config.pad_id",
    "to_dict": "dataclasses.asdict(config)",
    "type_vocab_size": "config.n_token_types",
}
_BATCH = "tokenizer.encode_batch(texts) returns an encoding with ids for each text; model(ids) needs no padding"
_ROLES = ("bos", "cls", "eos", "mask", "pad", "sep", "unk")
TOKENIZER = {
    **dict.fromkeys(("batch_encode_plus", "encode_plus"), _BATCH),
    **{f"{each}_token": 'write the token itself, such as "[MASK]"' for each in _ROLES},
    **{f"{each}_token_id": 'tokenizer.token_to_id("[MASK]") is the id of a token' for each in _ROLES},
    "apply_chat_template": 'npformer.pipeline("text-generation", model)(messages) applies the template of the folder',
    "batch_decode": "tokenizer.decode_batch(ids)",
    "convert_ids_to_tokens": "tokenizer.id_to_token(id), for each id",
    "convert_tokens_to_ids": "tokenizer.token_to_id(token), for each token",
    "model_max_length": "model.config.max_length",
    "save_pretrained": "tokenizer.save(path) writes the file of the tokenizer",
    "tokenize": "tokenizer.encode(text).tokens includes [CLS] and [SEP]",
    "vocab": "tokenizer.get_vocab()",
    "vocab_size": "tokenizer.get_vocab_size()",
}
_MODELS = "ForSequenceClassification ForTokenClassification ForQuestionAnswering ForMaskedLM ForCausalLM ForSeq2SeqLM"
_UTIL = "task.similarity(a, b) compares vectors; npformer.search(queries, vectors, k) finds the nearest ones"
#: For the module `npformer`.
MODULE = {
    **dict.fromkeys(("AutoModel", *(f"AutoModel{each}" for each in _MODELS.split())), "npformer.load(name)"),
    **dict.fromkeys(("util", "cos_sim", "semantic_search"), _UTIL),
    **dict.fromkeys(("Trainer", "TrainingArguments", "SentenceTransformerTrainer"), _TRAIN),
    "AutoConfig": "npformer.load(name).config",
    "AutoTokenizer": "npformer.load(name).tokenizer",
    "CrossEncoder": 'npformer.pipeline("text-ranking", name), which has predict and rank',
    "InputExample": "npformer.Pair(a, b)",
    "SentenceTransformer": 'npformer.pipeline("sentence-embedding", name), which has encode and similarity',
    "SparseEncoder": 'npformer.pipeline("sparse-embedding", name), which has encode and decode',
    "from_pretrained": "npformer.load(name)",
    "set_seed": "pass seed= to each call of text-generation",
    "shift": "it has been called npformer.shift_right since 0.3.0",
}
#: For arrays returned by tasks.
ARRAY = dict.fromkeys(("cpu", "detach", "numpy"), "answers are NumPy arrays; leave it out")
#: For the output of a model.
OUTPUT = {
    **dict.fromkeys(("hidden_states", "attentions"), _TRACE),
    "loss": "npformer.training.gradients computes the loss",
}
_LOAD = {
    **dict.fromkeys(("device", "device_map"), _CPU),
    **dict.fromkeys(("attn_implementation", "low_cpu_mem_usage"), "it has no effect; leave it out"),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), _TRACE),
    "cache_dir": "set HF_HUB_CACHE in the environment",
    "local_files_only": "write offline=True",
    "token": "set HF_TOKEN in the environment, or log in with `hf auth login`",
    "trust_remote_code": "a checkpoint's code is never run; leave it out",
}
_CALL = {
    **dict.fromkeys(("output_attentions", "output_hidden_states"), _TRACE),
    "labels": "npformer.training.gradients computes the loss",
    "return_dict": "outputs are always named; leave it out",
}
#: For each function, maps arguments in other libraries to their replacements.
ARGUMENTS: dict[str, Mapping[str, str]] = {
    "load": _LOAD,
    "log_softmax": {"dim": "write axis="},
    "search": {"top_k": "write k=", "query_chunk_size": "leave it out", "corpus_chunk_size": "leave it out"},
    "Model.__call__": _CALL,
}
#: For each function, maps older names of arguments in other libraries to npformer's arguments.
RENAMED: dict[str, Mapping[str, str]] = {"load": {"torch_dtype": "dtype"}}


class _AnsweringClass(type):
    """The metaclass of `Answering`, for names of class methods in other libraries, such as `Model.from_pretrained`."""

    lines: Mapping[str, str]

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            line = f": {cls.lines[name]}" if name in cls.lines else ""
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}{line}")


class Answering(metaclass=_AnsweringClass):
    """A base class with helpful errors: for a name from another library, the error shows the entry in `lines`."""

    lines: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, self.lines)

        def __setattr__(self, name: str, value: Any) -> None:
            """Raises an error for a name from another library, because setting it would have no effect."""
            if name in self.lines and not hasattr(type(self), name) and name not in self.__dict__:
                raise missing(self, name, self.lines)
            object.__setattr__(self, name, value)


def missing(owner: object, name: str, lines: Mapping[str, str]) -> AttributeError:
    """The error for a missing attribute, with the replacement if the name is from another library."""
    line = f": {lines[name]}" if name in lines else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{line}")


def answering(function: F) -> F:
    """Wraps a function so that the error for an argument in ARGUMENTS states the replacement."""
    name_of = getattr(function, "__qualname__", "")
    lines, renamed = ARGUMENTS.get(name_of), RENAMED.get(name_of, {})
    if lines is None:
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() & lines.keys():
            raise NpformerError(f"{function.__name__.strip('_')}: no argument {name!r}: {lines[name]}")
        for name in kwargs.keys() & renamed.keys():
            if renamed[name] in kwargs:
                raise NpformerError(f"{name}: conflicts with {renamed[name]}=; pass only one of the two")
            kwargs[renamed[name]] = kwargs.pop(name)
        return function(*args, **kwargs)

    wrapper.__module__ = "npformer"  # for pickle
    return cast(F, wrapper)
