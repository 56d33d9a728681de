"""Meaningful values for files of one kind: key -> values to set.

Examples are sizes that are too large, names that are valid elsewhere, and parts of tokenizers that are slow, make texts
longer, or refer to nothing."""

from __future__ import annotations

from typing import Any

HUGE = [0, -1, 3, 1000, 9990, 2**27, 2**31 - 1, 2**31, 2**63, 10**20]
NAMES = ["a" * 50, "", "0", None, 1]

LABELS = {
    "id2label": [{}, None, [], {"0": "a"}, {"0": "a", "1": "a"}, {"0": None, "1": 2}, {"1": "a", "2": "b"}, {"0": "", "1": "\ud800"},
                 {str(i): f"l{i}" for i in range(3000)}, {"0": "a" * 3000, "1": "b"}, {"00": "a", "1": "b"}, {"0": True, "1": "b"}],
    "label2id": [{}, None, {"a": "b"}],
    "num_labels": HUGE,
    "problem_type": [None, "regression", "single_label_classification", "multi_label_classification", "a", 1, []],
    "architectures": [[], None, "BertModel", ["BertModel"], ["DistilBertForMaskedLM"], ["BertForSequenceClassification"], [None], [[]], {},
                      ["MarianMTModel"], ["nn.Transformer"], ["nn.TransformerDecoderLayer"], ["nn.MultiheadAttention"], [""]],
    "model_type": ["bert", "distilbert", "electra", "roberta", "camembert", "albert", "mpnet", "modernbert", "deberta-v2", "nomic_bert", "bart", "marian", "transformer", "", None, 1, [], {}, "gpt2", "t5", "a" * 3000],
    "tie_word_embeddings": [False, True, None, 1],
}  # fmt: skip

ENCODER = LABELS | dict.fromkeys(("vocab_size", "dim", "hidden_dim", "n_heads", "n_layers", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "type_vocab_size", "embedding_size", "num_hidden_groups", "inner_group_num", "pad_token_id"), HUGE) | {
    "layer_norm_eps": [0, -1, 1e-30, 1e30, 5e-324, True, "1e-12", None],
    "hidden_act": ["relu", "silu", "swish", "gelu_new", "tanh", "", None, []],
    "activation": ["relu", "silu", "gelu_fast", 1, {}],
    "pruned_heads": [{}, {"0": [1]}, [], 1],
    "position_embedding_type": ["absolute", "relative_key", None],
    "rope_scaling": [None, {"type": "linear"}, {"rope_type": []}, {}, 1], "rope_parameters": [{"rope_theta": 1e4}], "attention_type": ["original_full", {}, "a" * 3000],
    "auto_map": [{}, None, [], {"AutoModel": "a.B"}, {"AutoModel": ["a" * 3000]}, {"AutoModelForCausalLM": None}, {"AutoTokenizer": 1}],
    "sinusoidal_pos_embds": [True, None],
    "is_decoder": [True, None, 0],
}  # fmt: skip

TRANSLATION = LABELS | dict.fromkeys(("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "pad_token_id", "decoder_start_token_id"), HUGE) | {
    "eos_token_id": [0, [], [0, 1], None, -1, 2**40, list(range(500)), "0", [None]],
    "activation_function": ["relu", "gelu", "", None],
    "share_encoder_decoder_embeddings": [False, None, 1],
    "scale_embedding": [False, 2, None],
    "normalize_before": [True, None],
    "static_position_embeddings": [False],
}  # fmt: skip

MODULES = LABELS | dict.fromkeys(("d_model", "n_heads", "d_ffn", "n_layers", "vocab_size", "max_length", "n_decoder_layers", "n_decoder_heads", "d_decoder_ffn", "target_vocab_size", "decoder_start_token_id", "pad_token_id"), HUGE) | {
    "modules": [{}, None, [], {"layers.*": "a.*"}, {"layers.*": ""}, {"": "x"}, {"layers.*.attention": 1}, {"*": "*"}, {"a": "b" * 3000},
                {"layers.*.attention.query": "q"}, {f"g{i}": "m" for i in range(3000)}],
    "positions": ["learned", "sinusoidal", "sinusoidal-halves", "", None, []],
    "head": ["base", "sequence-classification", "token-classification", "translation", "masked-lm", None, 1, []],
    "eps": [0, 1e30, None],
    "bias": [False, None, 1],
    "norm_first": [True, "yes"],
    "final_norm": [True, None],
    "share_embeddings": [True],
    "activation": ["gelu", "relu", "", None],
    "dtype": ["float16", 1, None],
}  # fmt: skip


def index(shard: str) -> dict[str, list[Any]]:
    names = ["", ".", "..", "/etc/passwd", f"../{shard}", f"./{shard}", shard, "a\0b", "x" * 300 + ".bin", "../outside/model.safetensors",
             "config.json", "nowhere.safetensors", "nowhere.bin", None, 1, [], "a\n.bin", "model.safetensors.index.json"]  # fmt: skip
    return {
        "weight_map": [
            {},
            None,
            [],
            {"a": shard},
            {"a": 1},
            {f"t{i}": shard for i in range(3000)},
            {f"t{i}": f"{i}.bin" for i in range(3000)},
        ],
        "metadata": [{}, None, {"total_size": -1}],
        **dict.fromkeys(("classifier.weight", "pre_classifier.bias", "distilbert.embeddings.LayerNorm.weight"), names),
    }


# --- tokenizers ------------------------------------------------------------------------------------------------------


def _replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _chain(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


_NESTED: dict[str, Any] = {"type": "Lowercase"}
for _ in range(60):
    _NESTED = _chain(_NESTED)

SLOW = ("(a+)+$", "(a|a)*b", "(.*)*x", "((a*)*)*z", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?<=a.*)b", "\\G", "(", "[", "", ".", "(?i)i", "\\p{L}",
        "a{1000}{1000}", "(?:a?){30}a{30}", "\\1", "(?<n>a)\\k<n>", "[^\\x00]", "(?=a)*", "$", "\\b")  # fmt: skip
NORMALIZERS = [
    None, {}, [], {"type": "?"}, {"type": "Lowercase"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "StripAccents"}, {"type": "Nmt"},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "a" * 100_000}, {"type": "Prepend", "prepend": ""},
    {"type": "ByteLevel"}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "Precompiled", "precompiled_charsmap": ""},
    {"type": "Precompiled", "precompiled_charsmap": "/" * 400 + "=="}, {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/////"},
    _replace("i", "i" * 10), _replace("e", "e" * 1_000_000), _replace("", "a"), _replace("", "ab", "Regex"), _replace(" ", ""),
    _chain(*[_replace("a", "aa")] * 12), _chain(*[_replace("e", "ee")] * 40), _chain(*[_replace("", "aa")] * 8), _chain(*[_replace("e", "e" * 1000)] * 4),
    _chain(_replace(".", "x" * 100, "Regex"), _replace("x", "y" * 100), _replace("y", "z" * 1000)), _chain(), _NESTED,
    *[_replace(each, "x", "Regex") for each in SLOW],
    {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": True, "lowercase": False},
]  # fmt: skip
PRE_TOKENIZERS = [
    None, {}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "UnicodeScripts"},
    {"type": "Digits", "individual_digits": True}, {"type": "CharDelimiterSplit", "delimiter": "e"}, {"type": "CharDelimiterSplit", "delimiter": ""},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "FixedLength", "length": 0},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, {"type": "Metaspace", "replacement": "", "prepend_scheme": "x"},
    {"type": "FixedLength", "length": 2}, {"type": "Sequence", "pretokenizers": []}, {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 20},
    *[{"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": invert} for each in SLOW for invert in (False, True)],
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": False}, {"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": True},
]  # fmt: skip
_TOKEN = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
_FIRST = {"Sequence": {"id": "A", "type_id": 0}}


def _template(single: list[Any], ids: list[Any], tokens: list[str], pair: list[Any] | None = None) -> dict[str, Any]:
    special = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": tokens}}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair or [_FIRST, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


PROCESSORS = [
    None, {}, {"type": "ByteLevel", "trim_offsets": True}, {"type": "BertProcessing", "sep": ["[SEP]", 4_000_000_000], "cls": ["[CLS]", 2]},
    {"type": "BertProcessing", "sep": ["", 0], "cls": ["", 0]}, {"type": "BertProcessing", "sep": ["[SEP]", 99_999], "cls": ["[CLS]", 2]},
    {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": True},
    _template([_TOKEN, _FIRST], [2], ["[CLS]"]), _template([_TOKEN, _FIRST], [99_999], ["[CLS]"]), _template([_FIRST], [2], ["[CLS]"]),
    _template([_TOKEN], [2], ["[CLS]"]), _template([], [2], ["[CLS]"]), _template([_TOKEN, _FIRST], [2, 2, 2], ["a", "b", "c"]), _template([_TOKEN, _FIRST], [], []),
    _template([_TOKEN] * 5000 + [_FIRST], [2], ["[CLS]"]), _template([_FIRST] * 300, [2], ["[CLS]"]), _template([_TOKEN, _FIRST], [2] * 50_000, ["a"] * 50_000),
    _template([{"Sequence": {"id": "B", "type_id": 0}}], [2], ["[CLS]"]), _template([{"Sequence": {"id": "A", "type_id": 9}}], [2], ["[CLS]"]),
    _template([_TOKEN, _FIRST], [-1], ["[CLS]"]), _template([{"SpecialToken": {"id": "?", "type_id": 0}}, _FIRST], [2], ["[CLS]"]),
    {"type": "Sequence", "processors": []}, {"type": "Sequence", "processors": [_template([_TOKEN, _FIRST], [2], ["[CLS]"])] * 20},
]  # fmt: skip
DECODERS = [
    None, {}, {"type": "ByteLevel"}, {"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁"}, {"type": "WordPiece", "prefix": "", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True}, {"type": "Sequence", "decoders": []},
    {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}, _replace("", "a" * 1000), _replace("(a+)+$", "", "Regex"), {"type": "Sequence", "decoders": [_replace("e", "ee")] * 25},
]  # fmt: skip
_FEW = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "[PAD]": 0, "i": 5, "e": 6}
MODELS = [
    None, {}, {"type": "WordLevel", "vocab": _FEW, "unk_token": "nowhere"}, {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
    {"type": "WordLevel", "vocab": {"i": 4_294_967_295}, "unk_token": "i"}, {"type": "WordPiece", "vocab": _FEW, "unk_token": "[UNK]", "continuing_subword_prefix": "", "max_input_chars_per_word": 2**60},
    {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 0},
    {"type": "BPE", "vocab": _FEW, "merges": []}, {"type": "BPE", "vocab": {"i": 0}, "merges": [], "unk_token": None}, {"type": "BPE", "vocab": _FEW, "merges": [["i", "x"]]},
    {"type": "BPE", "vocab": _FEW | {"ie": 7}, "merges": [["i", "e"]], "dropout": 0.5, "byte_fallback": True}, {"type": "BPE", "vocab": _FEW, "merges": ["i e"], "unk_token": "nowhere"},
    {"type": "BPE", "vocab": _FEW, "merges": [], "dropout": 7}, {"type": "BPE", "vocab": _FEW, "merges": [], "continuing_subword_prefix": "x" * 500, "fuse_unk": True, "unk_token": "[UNK]"},
    {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}, {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}, {"type": "Unigram", "vocab": [], "unk_id": 0}, {"type": "Unigram", "vocab": [], "unk_id": None},
    {"type": "Unigram", "vocab": [["", 1.0], ["a", 1e308], ["a", -1e308]], "unk_id": 9}, {"type": "Unigram", "vocab": [["<unk>", 0], ["i", 0]], "unk_id": 0, "byte_fallback": True}, {"vocab": _FEW},
]  # fmt: skip


def _added(number: Any, content: Any, **flags: Any) -> dict[str, Any]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    } | flags


TOKENIZER = {
    "normalizer": NORMALIZERS, "normalizers": [[], NORMALIZERS[17:20]], "pre_tokenizer": PRE_TOKENIZERS, "post_processor": PROCESSORS,
    "decoder": DECODERS, "model": MODELS, "version": ["1.0", "2.0", "", None],
    "truncation": [None, {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}, {"direction": "Left", "max_length": 0, "strategy": "OnlySecond", "stride": 9}],
    "padding": [None, {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
                {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 2**40, "pad_id": 2**32 - 1, "pad_type_id": 9, "pad_token": ""}],
    "added_tokens": [[], None, [_added(0, "")], [_added(0, "a")], [_added(99_999, "zz")], [_added(5, "[NEW]")], [_added(4_294_967_295, "q")], [_added(0, "i", normalized=True, lstrip=True, rstrip=True)],
                     [_added(i, f"t{i}") for i in range(2000)], [_added(0, "[PAD]"), _added(0, "[UNK]")], [_added(0, "\u0000")], [_added(0, " ", single_word=True)], [_added(0, "i" * 3000)]],
    "max_input_chars_per_word": [0, 1, 2**60], "continuing_subword_prefix": ["", "a", "##" * 500], "unk_token": [None, "nowhere", "", "[UNK]", "i"],
    "strip_accents": [None, True, False], "lowercase": [False], "merges": [[], [["i", "c"]], ["i c"], [["i", "nowhere"]], [["", ""]]], "dropout": [0.5, 1.0, 2.0],
    "byte_fallback": [True], "unk_id": [None, 0, 10**6], "cleanup": [False], "behavior": ["Removed", "Isolated", "MergedWithPrevious", "?"], "invert": [True],
    "replacement": ["", "▁", "ab"], "prefix": ["", "##"], "content": ["", "i", "[NEW]", "\u0000"], "id": [0, 5, 10**6],
    "vocab": [{}, [], _FEW, {"a": 0, "b": 0}, {"a": 5}, [["a", 0.0]], {"[UNK]": 1, "[CLS]": 2, "[SEP]": 10**9}],
}  # fmt: skip

TOKENIZER_CONFIG = {
    "do_lower_case": [True, False, None, 1, "x"], "strip_accents": [True, False, None, 0], "tokenize_chinese_chars": [True, False, None, []],
    "model_max_length": [0, 1, 2, 3, -1, 2.5, 1e30, 10**30, None, "9", True, float("nan"), float("inf"), -float("inf"), 10**400],
    "tokenizer_class": ["BertTokenizer", "PreTrainedTokenizerFast", "", None, 1, [], "DistilBertTokenizerFast", "XLMRobertaTokenizer", "CamembertTokenizerFast", "RobertaTokenizer"],
    "added_tokens_decoder": [{}, None, [], {"0": {"content": "[PAD]"}}, {"x": {"content": "a"}}, {"0": None}, {"0": "a"}, {"-1": {"content": "a"}}, {"9" * 30: {"content": "a"}},
                             {"٣": {"content": "b"}}, {"0": {"content": "\u0000"}}, {"0": {"content": ""}}, {"0": {"content": "a", "lstrip": "x", "special": 3}},
                             {str(i): {"content": f"t{i}", "special": True} for i in range(2000)}, {"5": {"content": "\ud800"}}],
    **{role: ["", None, "nowhere", "[UNK]", "i", {"content": "[UNK]"}, {"content": ""}, {"content": 1}, {}, [], 1, "\u0000", "a" * 5000, {"content": "[NEW]", "lstrip": 1}]
       for role in ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "eos_token")},
    "additional_special_tokens": [[], None, ["a"], [""], [None], "ab", {}, [{"content": "x"}], ["[CLS]"] * 50, [f"s{i}" for i in range(2000)]],
    **{key: [True, False, None, 1, "x"] for key in ("add_prefix_space", "trim_offsets", "keep_accents")},
    "separate_vocabs": [True, False, None, 1], "source_lang": ["de"], "clean_up_tokenization_spaces": [True], "[NEW]": [0, 78, -1, 10**9, None, "x", True, 1e400],
}  # fmt: skip

# --- the rest --------------------------------------------------------------------------------------------------------

GENERATION = {
    **{key: [0, 1, 2, 5, 9, 20, 24, 25, 1000, 2 ** 31, 2 ** 40, -1, None, 1.5, True] for key in ("num_beams", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_return_sequences", "top_k", "no_repeat_ngram_size", "seed")},
    **{key: [0, -1, 0.5, 1, 1e-06, 1000000.0, 1e-300, 1e+300, -50, 50, 10 ** 400, float("nan"), float("inf"), None, True, "1"] for key in ("temperature", "repetition_penalty", "length_penalty", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")},
    **{key: [True, False, None, "never", 1, 0, []] for key in ("early_stopping", "do_sample", "renormalize_logits")},
    **{key: [0, 1, 4, -1, None, [], [0], [0, 1, 2], 10 ** 6, 2 ** 40, [None], "0", list(range(60)), 1.5, [[0]]] for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id", "forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens")},
    "sequence_bias": [[], None, [[[4], 1.5]], [[[0, 1], -2]], [[[], 1.0]], [[4, 1.0]], [[[4]]], [[[10**9], 1.0]], "x", 5, {"a": 1}, [[[4], 1e300]], [[["a"], 1.0]], [[[4], [4]]]],
    "exponential_decay_length_penalty": [None, [1, 1.1], [0, 1e6], [0, 1e300], [-1, 2.0], [1], [1.5, 1], "ab", 5, [1, True], {"a": 1}, [[1], 1.0], []],
    "bad_words_ids": [[], None, [[]], [[4]], [4], [[0, 1], [2]], [[10**9]], "x", [[i] for i in range(60)], [["a"]]],
    **{key: [None, 0, 0.5, 1, [], "x"] for key in ("guidance_scale", "max_time", "stop_strings", "constraints", "num_beam_groups", "diversity_penalty", "a")},
}  # fmt: skip

SENTENCE = {
    "pooling_mode": ["cls", "mean", "max", ["cls", "mean"], [], [[]], None, 1, {}, "a", ["mean"] * 300, "lasttoken", "weightedmean"],
    **{key: [True, False, None, 1, "x"] for key in ("pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_lasttoken")},
    "max_seq_length": [0, 2, 3, 4, 24, 10**30, -1, None, 1.5, True, "16"], "do_lower_case": [True, None, 1],
    "path": ["", ".", "..", "/", "1_Pooling", "nowhere", "a" * 5000, "\u0000", None, 1, [], "../outside", "É"],
    "type": ["sentence_transformers.models.Transformer", "Pooling", "a.Dense", "Normalize", "", None, 1, "." * 3000, "x" * 9000],
    "prompts": [{}, None, [], {"query": None}, {"query": "x" * 100_000}, {"query": ""}, 1], "default_prompt_name": [None, "query", "a", 1, [], {}],
    "include_prompt": [False, True], "word_embedding_dimension": [0, None],
}  # fmt: skip

GOLDEN = ENCODER | {
    "config": [{}, None, []], "tokens": [[], None, [[]], [["a"]], [["a"] * 5] * 2, "ab", [None], [["a"] * 5, ["a"] * 4], {"0": []}],
    "stages": [[], None, ["logits"], ["logits", "logits"], "logits", ["nowhere"], [1], [["a"]], {"logits": 1}], "budgets": [{}, None, [], {"logits": 0}, {"logits": "1"}, 1],
    "model": [None, "", "a" * 5000, "../outside", ["a"]], "versions": [None, {}, [], [["a", 1]], "ab"], "weights_sha256": [None, 1, ""],
    "logits": [0, -1, 1e400, 1e-320, "1e-6", None, True, float("nan"), 10**400],
}  # fmt: skip

TRACE = (
    ENCODER
    | {name: GOLDEN[name] for name in ("config", "tokens", "stages")}
    | {"segments": [[], None, [[0] * 5], [[1e400]], "ab", [["x"]], [[[0]]], [[2**70]]]}
)

STATE = {
    **{key: [0, 1, 2, 4, 5, -1, 2 ** 63, 10 ** 400, None, 1.5, "2", True] for key in ("step", "right", "count")},
    **{key: [0, -1, 1e+308, float("nan"), float("inf"), None, "0"] for key in ("loss", "seconds")},
    "history": [[], None, {}, [{}], [1], [{"epoch": 0}], [{"epoch": 0, "accuracy": None}], [{"epoch": 0, "accuracy": float("nan")}], "ab", [{"accuracy": "x", "epoch": "y"}]],
    "accuracy": [None, "x", float("nan"), -1, 10**400], "epoch": [None, "x", -1], "end_epoch": [1], "__class__": [1], "a": [1], "recipe": [{}],
}  # fmt: skip

ROW = {
    "label": ["POSITIVE", "positive", "0", "7", "99999", 1, 0, -1, True, None, [], {}, 1.5, "", " ", "٣", "²", "\ud800", "a" * 9000, 10**400, float("nan")],
    "text": ["", " ", None, 1, [], {}, "a" * 100_000, "\ud800", "\u0000", True],
    **{key: ["a", "", None, 1] for key in ("text_pair", "sentence", "sentence1", "sentence2", "premise", "x" * 9000)},
}  # fmt: skip
