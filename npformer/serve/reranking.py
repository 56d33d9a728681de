"""The routes that rank texts: TEI's /rerank, and the format of Cohere and Jina, which vLLM and Infinity also support.

A body with `documents` has the second format on either route.

References
----------
https://docs.cohere.com/reference/rerank and https://api.jina.ai/redoc.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npformer.serve import fields as f
from npformer.serve.fields import Field
from npformer.serve.models import Prepared, TaskWork, choose
from npformer.serve.routes import MODEL, TEI, TRUNCATE, Reply, Route, Service, usage
from npformer.tasks.task import Task
from npformer.text.inputs import Pair

Ranks = list[tuple[int, float]]  # (index, score) of each text, best first


async def _ranks(
    service: Service, task: Task, given: dict[str, Any], texts: Sequence[str], truncate: bool, where: str
) -> tuple[Ranks, Prepared]:
    options = replace(task.options, function_to_apply="none" if given["raw_scores"] else "sigmoid")  # TEI's scores
    pairs = f.Texts([Pair(given["query"], each) for each in texts], several=True)
    found, prepared = await service.ask(TaskWork(task, options), pairs, truncate, where)
    scores = [(i, each["score"]) for i, each in enumerate(found)]
    return sorted(scores, key=lambda each: -each[1]), prepared


async def rerank(service: Service, given: dict[str, Any]) -> Reply:
    _, task = choose(service.models, given["model"], "text-ranking")
    texts = given["texts"]
    ranks, prepared = await _ranks(service, task, given, texts, given["truncate"], "texts")
    shown = [{"index": i, "score": score} | ({"text": texts[i]} if given["return_text"] else {}) for i, score in ranks]
    return Reply(prepared, shown)


async def rerank_documents(service: Service, given: dict[str, Any]) -> Reply:
    """Returns the best documents, with all fields that the answers of Cohere, Jina and Infinity have."""
    name, task = choose(service.models, given["model"], "text-ranking")
    documents, most = given["documents"], given["max_tokens_per_doc"]
    service.limits.check_texts("documents", len(documents))
    texts = documents if most is None else await service.in_thread(_shortened, task, documents, most)
    truncate = given["truncate"] or most is not None
    ranks, prepared = await _ranks(service, task, given, texts, truncate, "documents")
    results = [
        {"index": i, "relevance_score": score}
        | ({"document": {"text": documents[i]}} if given["return_documents"] else {})
        for i, score in ranks[: given["top_n"] or None]
    ]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    frame = {"id": str(uuid.uuid4()), "object": "rerank", "results": results, "model": name}
    return Reply(prepared, {**frame, "usage": usage(prepared), "meta": meta})


def _shortened(task: Task, texts: Sequence[str], most: int) -> list[str]:
    """Truncates texts to at most this number of tokens."""
    return [text if len(text) <= most else _first_tokens(task, text, most) for text in texts]


def _first_tokens(task: Task, text: str, most: int) -> str:
    begun = text[: most * LONGEST]  # the rest would be truncated anyway, so it is not tokenized
    rows = task.encoder.described(begun, False, len(begun))
    return text if len(rows) <= most and begun == text else text[: rows[:most][-1][4]]


LONGEST = 100  # assumed maximum number of characters in a token
_SCORES = {"raw_scores": Field(f.BOOLEAN, False, "Return logits, not probabilities.")}
DOCUMENTS = Route(
    "/v1/rerank",
    "The documents ranked by relevance to the query, in Cohere's and Jina's format",
    {
        "query": Field(f.TEXT),
        "documents": Field(f.DOCUMENTS, what='Texts, or objects {"text": ...}.'),
        **MODEL,
        "top_n": Field(f.whole(0), None, "Return only this many documents, the best ones (default and 0: all)."),
        "return_documents": Field(f.BOOLEAN, False, "Include the documents in the results."),
        "max_tokens_per_doc": Field(
            f.whole(1), None, "Truncate each document to this many tokens, or fewer if the model takes fewer."
        ),
        **_SCORES,
        **TRUNCATE,
        "rank_fields": Field(f.nothing_else("documents are ranked by their text", ["text"]), None),
        "max_chunks_per_doc": Field(f.whole(0), None, "Ignored: a document is read in one piece."),
        "priority": Field(f.whole(0, 999), None, "Ignored."),
        "user": Field(f.TEXT, None, "Ignored."),
    },
    rerank_documents,
)
ROUTES = (
    Route(
        "/rerank",
        "The texts ranked by relevance to the query, best first; also accepts the bodies of /v1/rerank",
        {
            "query": Field(f.TEXT),
            "texts": Field(f.TEXT_LIST),
            **_SCORES,
            "return_text": Field(f.BOOLEAN, False, "Include the texts in the answer."),
            **{each: TEI[each] for each in TEI if each != "prompt_name"},
        },
        rerank,
        DOCUMENTS,
        lambda given: "documents" in given,
        "a field `documents`",
    ),
    DOCUMENTS,
    replace(DOCUMENTS, path="/v2/rerank", summary="The same as /v1/rerank, for clients of Cohere's second version"),
)
