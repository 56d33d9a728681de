"""A request and an answer for each route, for the reference and /openapi.json. Vectors are shortened to two numbers."""

from __future__ import annotations

from typing import Any

TEXTS = ["I love ice cream", "not my music"]
EMOTION, VECTOR = [{"label": "POSITIVE", "score": 0.9993}, {"label": "NEGATIVE", "score": 0.0007}], [0.0512, -0.0134]
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
MADE = {"id": "cmpl-1", "created": 1795655540, "model": "gpt2", "usage": USAGE}
STREAM = """data:{"index":1,"token":{"text":" sat","special":false},"generated_text":null,"details":null}

data:{"index":2,"token":{"text":" down","special":false},"generated_text":" sat down","details":null}
"""

RANKED: tuple[dict[str, Any], Any] = (
    {"query": "a dessert", "documents": TEXTS, "top_n": 1},
    {
        "id": "0c7f3a52-8a7e-4d33-9d5c-5f0f3b6f2a11",
        "object": "rerank",
        "results": [{"index": 0, "relevance_score": 0.9127}],
        "model": "ms-marco-MiniLM-L6-v2",
        "usage": {"prompt_tokens": 17, "total_tokens": 17},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    },
)

#: Path -> request and answer; a streamed answer is a string.
EXAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "/embed": ({"inputs": TEXTS}, [VECTOR, [0.0271, 0.0618]]),
    "/embed_all": ({"inputs": "ice"}, [[VECTOR, [0.1102, 0.0417], [-0.0213, 0.0155]]]),
    "/embed_sparse": ({"inputs": ["ice"]}, [[{"index": 3256, "value": 2.17}, {"index": 6949, "value": 0.84}]]),
    "/similarity": ({"inputs": {"source_sentence": "a dessert", "sentences": TEXTS}}, [0.61, 0.12]),
    # not ["I love ice cream", "not my music"], which would be one pair
    "/predict": ({"inputs": [["I love ice cream"], ["not my music"]]}, [EMOTION, EMOTION[::-1]]),
    "/rerank": (
        {"query": "a dessert", "texts": TEXTS, "return_text": True},
        [
            {"index": 0, "score": 0.9127, "text": "I love ice cream"},
            {"index": 1, "score": 0.0003, "text": "not my music"},
        ],
    ),
    "/tokenize": (
        {"inputs": ["ice"]},
        [
            [
                {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
                {"id": 3256, "text": "ice", "special": False, "start": 0, "stop": 3},
                {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
            ]
        ],
    ),
    "/v1/embeddings": (
        {"input": TEXTS},
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": 0, "embedding": VECTOR},
                {"object": "embedding", "index": 1, "embedding": [0.0271, 0.0618]},
            ],
            "model": "all-MiniLM-L6-v2",
            "usage": {"prompt_tokens": 11, "total_tokens": 11},
        },
    ),
    "/v1/rerank": RANKED,
    "/v2/rerank": RANKED,
    "/translate": ({"inputs": ["the dog"]}, [{"translation_text": "der Hund"}]),
    "/summarize": ({"inputs": ["The first hour was slow. I loved the end."]}, [{"summary_text": "A slow start."}]),
    "/text2text": ({"inputs": ["translate English to German: the dog"]}, [{"generated_text": "der Hund"}]),
    "/zero_shot": (
        {"inputs": "I love ice cream", "parameters": {"candidate_labels": ["food", "music"]}},
        [{"label": "food", "score": 0.9612}, {"label": "music", "score": 0.0388}],
    ),
    "/tag": (
        {"inputs": "Sarah lives in London"},
        [
            {"entity_group": "PER", "score": 0.9981, "word": "Sarah", "start": 0, "end": 5},
            {"entity_group": "LOC", "score": 0.9993, "word": "London", "start": 15, "end": 21},
        ],
    ),
    "/answer": (
        {"inputs": {"question": "Where does she live?", "context": "Sarah lives in London."}},
        {"answer": "London", "score": 0.9731, "start": 15, "end": 21},
    ),
    "/fill": (
        {"inputs": "I love [MASK] cream", "parameters": {"top_k": 1}},
        [{"score": 0.9414, "token": 3256, "token_str": "ice", "sequence": "i love ice cream"}],
    ),
    "/generate": ({"inputs": "The cat", "parameters": {"max_new_tokens": 2}}, {"generated_text": " sat down"}),
    "/generate_stream": ({"inputs": "The cat", "parameters": {"max_new_tokens": 2}}, STREAM),
    "/v1/completions": (
        {"prompt": "The cat", "max_tokens": 2},
        {
            **MADE,
            "object": "text_completion",
            "choices": [{"index": 0, "text": " sat down", "logprobs": None, "finish_reason": "length"}],
        },
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "What is a noun?"}], "max_completion_tokens": 2},
        {
            **MADE,
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "A word", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "length",
                }
            ],
        },
    ),
}
