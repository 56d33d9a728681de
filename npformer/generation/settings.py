"""`Settings`: generation settings with the names of Transformers, from the caller and generation_config.json.

Other settings have the defaults of `generate` in Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.read import CONFIG
from npformer.common import checks
from npformer.common.errors import NpformerError, warn
from npformer.common.files import read_json
from npformer.config import Config, Decoder

FILE = "generation_config.json"

#: Ignored settings, most of which affect only the form of the output, caches or speed.
IGNORED = frozenset({
    "_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "bos_token_id", "cache_implementation",
    "max_cache_len", "cache_config", "compile_config", "disable_compile", "is_assistant", "token_healing",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind", "low_memory", "prefill_chunk_size",
    "remove_invalid_values", "use_mtp", "continuous_batching_config",
})  # fmt: skip


def _moved(search: str) -> str:
    return f"Transformers 5 moved this search to the repository transformers-community/{search}"


BANS = "use bad_words_ids, suppress_tokens or sequence_bias to control tokens"
SPECULATION = "speculative decoding is not implemented"
STREAMS = "the method stream yields tokens as they are chosen"
#: Maps the name of a length in new tokens to the older name of a length that includes the prompt.
LENGTHS = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}
MOST = 2**31
MOST_LOGPROBS = 1000

TIME = "results would depend on speed; use max_new_tokens"
HARMLESS = (SPECULATION, TIME)  # reasons for ignoring settings that do not change the chosen tokens
UNHEARD = ("eos_token_id", "suppress_tokens", "begin_suppress_tokens")  # ids past the vocabulary do nothing

#: Maps each unsupported setting to the values that have no effect, and the reason.
UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "encoder_repetition_penalty": ((None, 1.0), "repetition_penalty applies to the generated text"),
    "encoder_no_repeat_ngram_size": ((None, 0), "no_repeat_ngram_size applies to the generated text"),
    "guidance_scale": ((None, 1.0), "negative prompts are not implemented"),
    "watermarking_config": ((None,), "watermarking is not implemented"),
    "stop_strings": ((None, ""), "only the text-generation task supports it; use eos_token_id"),
    "max_time": ((None,), TIME),
    "stream": ((None, False), STREAMS),
    "streamer": ((None,), STREAMS),
    "prompt_lookup_num_tokens": ((None,), SPECULATION),
    "assistant_early_exit": ((None,), SPECULATION),
    "assistant_ensemble_weight": ((None,), SPECULATION),
    "speculation_type": ((None,), SPECULATION),
    "force_words_ids": ((None,), f"{_moved('constrained-beam-search')}; {BANS}"),
    "constraints": ((None,), f"{_moved('constrained-beam-search')}; {BANS}"),
    "num_beam_groups": ((None, 1), _moved("group-beam-search")),
    "diversity_penalty": ((None, 0.0), _moved("group-beam-search")),
    "penalty_alpha": ((None,), _moved("contrastive-search")),
    "dola_layers": ((None,), _moved("dola")),
}


#: The range of each setting. Probabilities are at most 1; the other ranges prevent overflow of scores.
RANGES = {
    "temperature": (1e-6, 1e6), "repetition_penalty": (1e-6, 1e6), "length_penalty": (-50, 50), "top_p": (0, 1),
    "top_h": (1e-6, 1), "min_p": (0, 1), "typical_p": (1e-6, 1), "epsilon_cutoff": (0, 1), "eta_cutoff": (0, 1),
}  # fmt: skip
#: Settings that only sampling reads. Folders for greedy decoding may store values out of range, such as vLLM's top_k of
#: -1.
SAMPLING = (*("temperature", "top_k", "top_p", "top_h", "min_p"), *("typical_p", "epsilon_cutoff", "eta_cutoff"))


@dataclass(frozen=True)
class Settings:
    """Generation settings. Lengths do not include the prompt or the start token."""

    start_id: int | None
    end_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    max_new_tokens: int = 20
    min_new_tokens: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0  # the score of a finished target is its log probability / length ** length_penalty
    # True: stop at num_beams finished targets. False: stop when better targets are unlikely. "never": stop when better
    # targets are impossible.
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    top_h: float | None = None
    min_p: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    seed: int | None = None
    # pairs (sequence of ids, bias); the bias is added to the score of the last id if the other ids precede it
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    # The number of new tokens before the penalty begins, and its factor.
    exponential_decay_length_penalty: tuple[int, float] | None = None
    renormalize_logits: bool = False
    logprobs: int | None = None  # number of most likely tokens to return with each chosen token

    def check(self, vocabulary: int, longest: int) -> None:
        """Raises NpformerError for an invalid setting. longest: maximum of max_new_tokens."""
        checks.whole("max_new_tokens", self.max_new_tokens, 1, longest)
        checks.whole("min_new_tokens", self.min_new_tokens, 0, MOST)
        checks.whole("num_beams", self.num_beams, 1, 1000)
        checks.whole("num_return_sequences", self.num_return_sequences, 1, 1000)
        for name in ("top_k", "no_repeat_ngram_size"):
            checks.whole(name, getattr(self, name), 0, MOST)
        if self.temperature == 0 and self.do_sample is True:
            raise NpformerError(
                "temperature: expected a number above 0, got 0; for greedy decoding, use do_sample=False"
            )
        for name, (low, high) in RANGES.items():
            if (value := getattr(self, name)) is not None and (name, value) != ("temperature", 0):
                checks.number(name, value, low, high)
        for sequence, bias in self.sequence_bias:
            checks.whole("sequence_bias: tokens of a sequence", len(sequence), 1)
            checks.number("sequence_bias", bias, -1e6, 1e6)
        if self.exponential_decay_length_penalty is not None:
            start, factor = self.exponential_decay_length_penalty
            checks.whole("exponential_decay_length_penalty", start, 0, MOST)
            checks.number("exponential_decay_length_penalty", factor, 1e-6, 1e6)
        for name in ("early_stopping", "do_sample", "renormalize_logits"):
            if not isinstance(value := getattr(self, name), bool) and (name, value) != ("early_stopping", "never"):
                words = 'True, False or "never"' if name == "early_stopping" else "True or False"
                raise NpformerError(f"{name}: expected {words}, got {checks.shown(value)}")
        if self.seed is not None:
            checks.whole("seed", self.seed, 0, 2**63)
        if self.pad_id is not None:
            checks.whole("pad_token_id", self.pad_id, -1, MOST)
        lists = {
            "decoder_start_token_id": () if self.start_id is None else (self.start_id,),
            "eos_token_id": self.end_ids,
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
            "forced_eos_token_id": self.forced_eos_token_id,
            "forced_bos_token_id": () if self.forced_bos_token_id is None else (self.forced_bos_token_id,),
            "bad_words_ids": [each for word in self.bad_words_ids for each in word],
            "sequence_bias": [each for ids, _ in self.sequence_bias for each in ids],
        }
        for name, ids in lists.items():
            for each in ids:
                checks.whole(name, each, 0, vocabulary - 1)
        if self.do_sample and self.num_beams > 1:
            raise NpformerError("num_beams: expected 1 for sampling; use do_sample=False for beam search")
        if self.num_return_sequences > (self.num_return_sequences if self.do_sample else self.num_beams):
            raise NpformerError(
                f"num_return_sequences: {self.num_return_sequences} sequences need as many beams, or do_sample=True; "
                f"num_beams is {self.num_beams}"
            )
        if self.logprobs is not None:
            checks.whole("logprobs", self.logprobs, 0, min(MOST_LOGPROBS, vocabulary))
            if self.num_beams > 1:
                raise NpformerError("logprobs: not supported with beam search; use num_beams=1")
        if self.num_beams * max(2, 1 + len(self.end_ids)) > vocabulary:
            raise NpformerError(f"num_beams: {self.num_beams} is too large for a vocabulary of {vocabulary}")


#: Names that a caller may use: the names of fields, and Transformers' names of ids and older names of lengths.
NAMES = (
    *(each.name for each in fields(Settings) if each.name not in ("start_id", "end_ids", "pad_id")),
    "decoder_start_token_id", "eos_token_id", "pad_token_id", "max_length", "min_length",
)  # fmt: skip


def resolve(folder: Path | None, config: Config, given: Mapping[str, Any], prompt: int | None = None) -> Settings:
    """Merges settings: `given` settings take precedence over `stored_settings`, which take precedence over defaults.

    A value of None counts as not given. prompt: number of tokens before the first generated token, such as the start
    token of a translation; None if unknown, which means 1. The older lengths max_length and min_length, which include
    these tokens, are accepted. A minimum above the maximum is also accepted, as in Transformers.
    """
    path, found = stored_settings(folder)
    stored, notes = usable(found, config, config.max_length + 1 - (prompt or 1))
    if not config.decoder:
        stored = _with_rows(stored, config.n_outputs)
    given = {name: _plain(value) for name, value in given.items() if value is not None}
    if not merged(stored, given).get("do_sample"):
        stored = {name: value for name, value in stored.items() if name not in SAMPLING}
    if unreplaced := [note for name, note in merged(notes, given).items() if name not in given]:
        warn(f"{path}: {'; '.join(unreplaced)}")
    try:
        result = _settings(config, merged(stored, given), prompt or 1)
        if prompt is not None:
            _check_keys(config, prompt, result.max_new_tokens)
    except NpformerError as error:
        name = str(error).partition(":")[0].strip("'")
        raise NpformerError(f"{path}: {error}") if name in stored and name not in given else error from None
    return result


def _with_rows(stored: dict[str, Any], rows: int) -> dict[str, Any]:
    """The settings of a folder, without end tokens that cannot occur because they have no row in the table."""
    ends = stored.get("eos_token_id")
    several: list[Any] = ends if isinstance(ends, list) else [ends]
    if ends is None or not all(type(each) is int for each in several):
        return stored
    return {**stored, "eos_token_id": [each for each in several if 0 <= each < rows]}


def _settings(config: Config, values: dict[str, Any], prompt: int) -> Settings:
    """The checked settings with these values, for texts after `prompt` tokens."""
    of_texts: Decoder | Config = config.decoder or config
    end_ids = values.pop("eos_token_id", None)
    settings: dict[str, Any] = {
        "start_id": values.pop("decoder_start_token_id", of_texts.start_id),
        "end_ids": _own_ends(config) if end_ids is None else _ids("eos_token_id", end_ids),
        "pad_id": values.pop("pad_token_id", config.pad_id),
    }
    max_length, min_length = values.pop("max_length", None), values.pop("min_length", None)
    if values.get("max_new_tokens") is None:
        default = max(prompt + 1, min(prompt + 20, config.max_length))
        wanted = default if max_length is None else max_length
        values["max_new_tokens"] = checks.whole("max_length", wanted, prompt + 1, config.max_length + 1) - prompt
    if values.get("min_new_tokens") is None:
        length = checks.whole("min_length", 0 if min_length is None else min_length, 0, MOST)
        values["min_new_tokens"] = max(0, length - prompt)
    for name in ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id"):
        values[name] = _ids(name, values.get(name))
    words = values.get("bad_words_ids") or []
    if not isinstance(words, list | tuple):
        raise NpformerError(f"bad_words_ids: expected a list of ids for each word, got {checks.shown(words)}")
    values["bad_words_ids"] = tuple(_ids("bad_words_ids", word) for word in words)
    biases = values.get("sequence_bias") or []
    pairs = _pairs("sequence_bias", list(biases.items()) if isinstance(biases, dict) else biases)
    values["sequence_bias"] = tuple({_ids("sequence_bias", ids): bias for ids, bias in pairs}.items())
    if (penalty := values.get("exponential_decay_length_penalty")) is not None:
        [values["exponential_decay_length_penalty"]] = _pairs("exponential_decay_length_penalty", [penalty])
    for name, value in values.items():
        if name in NAMES:
            if value is not None:
                settings[name] = value
            continue
        if name in UNSUPPORTED:
            neutral, reason = UNSUPPORTED[name]
            if not isinstance(value, str | int | float | None) or value not in neutral:
                raise NpformerError(f"{name}: {checks.shown(value)} is not supported: {reason}; leave it out")
        elif name not in IGNORED:
            raise NpformerError(f"{name!r:.80}: unknown setting; known: {', '.join(NAMES)}")
    result = Settings(**settings)
    result.check(config.n_outputs, config.max_length + 1 - prompt)
    return result


def _check_keys(config: Config, prompt: int, new: int) -> None:
    """Raises NpformerError if generating `new` tokens would change the rotations of the prompt's keys.

    The model never reads the last new token, so the longest text that it reads has prompt + new - 1 tokens.
    """
    for last in (each.same_until(prompt) for each in chain(*config.layer_kinds)):
        if last is not None and prompt + new - 1 > last:
            raise NpformerError(
                f"max_new_tokens: expected at most {last + 1 - prompt} after a prompt of {prompt} tokens, got {new}; "
                f"in this model, longer texts change the rotations of all keys; generate fewer tokens"
            )


def stored_settings(folder: Path | None) -> tuple[Path | None, dict[str, Any]]:
    """The path and the settings of generation_config.json, or else of config.json, as in Transformers."""
    if folder is None:
        return None, {}
    if (folder / FILE).exists():
        return folder / FILE, read_json(folder / FILE)
    if not (folder / CONFIG).exists():
        return None, {}
    described = read_json(folder / CONFIG)
    read = {name: value for name, value in described.items() if name in NAMES}
    if described.get("force_bos_token_to_be_generated"):  # older form of forced_bos_token_id
        read["forced_bos_token_id"] = described.get("bos_token_id")
    return folder / CONFIG, read


def usable(
    settings: Mapping[str, Any], config: Config, room: int | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a folder that a model can use, and a note for each setting that is ignored or limited.

    Files often have settings for other libraries or for a larger model. The arguments of a call may replace these
    settings. room: maximum number of new tokens, which limits a stored max_new_tokens.
    """
    found, notes = dict(settings), {}
    for name, value in settings.items():
        if name not in NAMES and name not in UNSUPPORTED and name not in IGNORED:
            notes[name] = f"{name!r:.80}: unknown setting; it is ignored"
        elif name in UNSUPPORTED and UNSUPPORTED[name][1] in HARMLESS and value is not None:
            notes[name] = f"{name}: ignored: {UNSUPPORTED[name][1]}"
        elif name == "max_length" and type(value) is int and value > config.max_length:
            notes[name] = f"{name}: {value} is above the maximum of the model; {config.max_length} is used"
            found[name] = config.max_length
        elif name == "max_new_tokens" and type(value) is int and room is not None and value > room > 0:
            found[name] = room
        elif (
            name in UNHEARD and isinstance(value, list) and (kept := _below(value, config.n_outputs)) != value and kept
        ):
            notes[name] = f"{name}: ids outside the vocabulary of {config.n_outputs} tokens are ignored"
            found[name] = kept
        if name in notes and found[name] is value:
            del found[name]
    return found, notes


def _below(ids: Sequence[Any], vocabulary: int) -> list[Any]:
    """The ids that are in the vocabulary. A model never chooses other ids."""
    return [each for each in ids if type(each) is not int or each < vocabulary]


def _own_ends(config: Config) -> tuple[int, ...]:
    """The end tokens that can occur in a text. If none can occur, returns all end tokens, for an error message."""
    ends = (config.decoder or config).end_ids
    return tuple(_below(ends, config.n_outputs)) or ends


def merged(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides values with the given values. A length has two names (`LENGTHS`), and a given length replaces both."""
    replaced = {each for names in LENGTHS.items() if given.keys() & set(names) for each in names}
    return {**{name: value for name, value in values.items() if name not in replaced}, **given}


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Converts one id, a list of ids or None to a tuple."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(checks.whole(name, each, 0, MOST) for each in ids)


def _pairs(name: str, values: Any) -> list[tuple[Any, Any]]:
    if not isinstance(values, list | tuple) or not all(isinstance(v, list | tuple) and len(v) == 2 for v in values):
        raise NpformerError(f"{name}: expected a list of pairs, got {checks.shown(values)}")
    return [(first, second) for first, second in values]


def _plain(value: Any) -> Any:
    """Converts numbers and arrays of NumPy to numbers and lists of Python."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
