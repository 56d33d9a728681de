"""The declarations of all tasks, read by the pipeline, the command line, datasets and the service.

A pipeline without a task name uses the first task declared for the model's head. The class of a task declares the form
of its answers.
"""

from __future__ import annotations

from npformer.tasks.declaration import (
    STRIDE,
    Command,
    Declaration,
    Option,
    comma_separated,
    labels,
    long_or_error,
    option,
    whole,
)

PROMPT_NAME = option("--prompt-name NAME", "name of one of the model's prompts, to put before each text", "prompt_name")


def _text_to_text(name: str, summary: str, description: str, epilog: str, *more: Option) -> Command:
    """Returns the command of a text-to-text task."""
    return Command(
        name,
        summary,
        f"""{description}
Blank lines stay blank: line N of the output belongs to line N of the input.""",
        epilog,
        options=(
            *more,
            option("-b --beams N", "search with N beams (default: the model's)", "num_beams", type=whole),
            option("--best N", "show the N best answers for each text", "num_return_sequences", type=whole),
            option(
                "--max-tokens N", "maximum tokens in an answer (default: the model's)", "max_new_tokens", type=whole
            ),
            option(
                "--min-tokens N", "minimum tokens in an answer (default: the model's)", "min_new_tokens", type=whole
            ),
            option("--length-penalty P", "values above 1 favour long answers", "length_penalty", type=float),
            option("--sample", "sample words according to their probability", "do_sample"),
            option("--seed N", "seed for --sample", "seed", type=int),
        ),
        long=(long_or_error("texts that are too long (%(default)s)"),),
    )


TASKS = {
    "text-classification": Declaration(
        "text_classification.TextClassification",
        "sequence-classification",
        "a model with a sequence-classification head",
        aliases=("sentiment-analysis",),
        default="distilbert-sst2",
        route="/predict",
        command=Command(
            "classify",
            "the label of each text",
            "Classify each text: print its label and score.",
            """examples:
  npformer classify "I love ice cream"
  npformer classify --file reviews.txt --json > labels.jsonl
  npformer classify -m typeform/distilbert-base-uncased-mnli \\
    "A man sleeps." --pair "Nobody is awake."
  cut -f2 reviews.tsv | npformer classify --top-k 2

whole datasets, with the extra "data":
  npformer classify --input reviews.parquet --column review \\
      --output scored.parquet""",
            (option("-k --top-k K", "show the K best labels (default: only the best)", "top_k", type=whole),),
            reads="pair",
        ),
    ),
    "zero-shot-classification": Declaration(
        "zero_shot_classification.ZeroShotClassification",
        "sequence-classification",
        "a classifier trained on natural-language inference",
        label="entail",
        route="/zero_shot",
        command=Command(
            "zero-shot",
            "scores of your own labels for each text",
            "Score your own labels for each text, with a natural-language inference model.",
            """example:
  npformer zero-shot -m typeform/distilbert-base-uncased-mnli \\
      -l politics,sport "Who won the election?\"""",
            (
                option("-l --labels A,B,...", "the labels", "candidate_labels", required=True, type=labels),
                option(
                    "--template TEXT", 'a sentence with {} for the label ("This example is {}.")', "hypothesis_template"
                ),
                option("--multi-label", "score each label on its own, because several may fit", "multi_label"),
            ),
        ),
    ),
    "token-classification": Declaration(
        "token_classification.TokenClassification",
        "token-classification",
        "a model with a token-classification head",
        "dslim/bert-base-NER",
        aliases=("ner",),
        route="/tag",
        command=Command(
            "tag",
            "the names, places, ... in each text",
            "Find the entities in each text, with their character positions.",
            """example:
  npformer tag -m dslim/bert-base-NER "My name is Sarah and I live in London\"""",
            (
                option(
                    "--strategy",
                    "how to group tokens: none keeps each token separate; first, average and max label whole words "
                    "(%(default)s)",
                    "aggregation_strategy",
                    choices=("none", "simple", "first", "average", "max"),
                    default="simple",
                ),
                option("--ignore A,B,...", "labels to leave out (default: O)", "ignore_labels", type=comma_separated),
            ),
        ),
    ),
    "question-answering": Declaration(
        "question_answering.QuestionAnswering",
        "question-answering",
        "a model with a question-answering head",
        "distilbert/distilbert-base-cased-distilled-squad",
        route="/answer",
        command=Command(
            "answer",
            "answers to questions from a context",
            "Answer questions with spans of a text, the context.",
            """examples:
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context "I live in Berlin." "Where do I live?"
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context-file report.txt --file questions.txt""",
            (
                option("-k --top-k K", "show the K best answers (%(default)s)", "top_k", type=whole, default=1),
                option("--no-answer", "allow an empty answer if the context has no answer", "handle_impossible_answer"),
                option("--max-answer-len N", "maximum tokens in an answer (15)", "max_answer_len", type=whole),
            ),
            long=(STRIDE,),
            reads="question",
        ),
    ),
    "fill-mask": Declaration(
        "fill_mask.FillMask",
        "masked-lm",
        "a masked-language model",
        "distilbert/distilbert-base-uncased",
        route="/fill",
        command=Command(
            "fill",
            "words for [MASK]",
            "Predict the words for [MASK].",
            """example:
  npformer fill -m distilbert/distilbert-base-uncased "I love [MASK] cream\"""",
            (
                option("-k --top-k K", "show the K best words (%(default)s)", "top_k", type=whole, default=5),
                option("--targets A,B,...", "score only these words", "targets", type=comma_separated),
            ),
        ),
    ),
    "feature-extraction": Declaration("feature_extraction.FeatureExtraction", "base", "an encoder", route="/embed_all"),
    "sentence-embedding": Declaration(
        "sentence_embedding.SentenceEmbedding",
        "base",
        "an encoder that makes dense vectors",
        "sentence-transformers/all-MiniLM-L6-v2",
        route="/embed",
        command=Command(
            "embed",
            "a vector for each text",
            "Embed each text as a vector, to compare texts by meaning.",
            """examples:
  npformer embed -m sentence-transformers/all-MiniLM-L6-v2 \\
      --file sentences.txt -o sentences.npy
  npformer embed -m sentence-transformers/all-MiniLM-L6-v2 \\
      --normalize --truncate-dim 32 "what is ice cream made of?"

Row i of the array is the vector of text i, or NaN if text i cannot be read.""",
            (
                PROMPT_NAME,
                option("--normalize", "scale each vector to length 1", "normalize_embeddings"),
                option(
                    "--truncate-dim N", "keep each vector's first N numbers (Matryoshka)", "truncate_dim", type=whole
                ),
            ),
            array=True,
        ),
    ),
    "sparse-embedding": Declaration(
        "sparse_embedding.SparseEmbedding",
        "masked-lm",
        "a masked-language model, such as SPLADE",
        "naver/splade-cocondenser-ensembledistil",
        route="/embed_sparse",
        command=Command(
            "embed-sparse",
            "a sparse vector of words for each text",
            "Embed each text as a sparse vector of weighted words, for an inverted index.",
            """example:
  npformer embed-sparse -k 8 \\
      -m naver/splade-cocondenser-ensembledistil "I love ice cream\"""",
            (
                PROMPT_NAME,
                option("-k --top-k K", "keep the K words with the largest weights", "max_active_dims", type=whole),
            ),
        ),
    ),
    "multi-vector-embedding": Declaration(
        "multi_vector_embedding.MultiVectorEmbedding",
        "base",
        "an encoder with a head for token vectors, such as BGE-M3",
        "BAAI/bge-m3",
        by_folder=True,
    ),
    "text-ranking": Declaration(
        "text_ranking.TextRanking",
        "sequence-classification",
        "a cross-encoder (a sequence-classification model with one label)",
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        aliases=("rerank",),
        n_labels=1,
        route="/rerank",
        command=Command(
            "rerank",
            "texts ranked by relevance to a query",
            """Rank the lines of files by how well they answer a query, with a cross-encoder.""",
            """examples:
  npformer rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 \\
      "Who likes ice cream?" sentences.txt

With --input the rows keep their order: --column names the queries,
--pair-column the texts.""",
            reads="query",
        ),
    ),
    "translation": Declaration(
        "text_to_text.Translation",
        "translation",
        "a translation model",
        "Helsinki-NLP/opus-mt-en-de",
        route="/translate",
        command=_text_to_text(
            "translate",
            "a translation of each text",
            "Translate each text.",
            """examples:
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      "A dog runs through the snow."
  npformer translate -m Helsinki-NLP/opus-mt-en-ROMANCE \\
      --to fra --file letter.txt > letter.fr.txt
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      --beams 4 --best 3 --json < sentences.txt""",
            option("--to CODE", "target language, for a multilingual model (fra, deu, ...)", "to"),
        ),
    ),
    "summarization": Declaration(
        "text_to_text.Summarization",
        "translation",
        "an encoder-decoder for summarization, such as BART or T5",
        "facebook/bart-large-cnn",
        route="/summarize",
        command=_text_to_text(
            "summarize",
            "a summary of each text",
            "Summarize each text.",
            """example:
  npformer summarize -m facebook/bart-large-cnn \\
      --max-tokens 60 --long truncate --file reviews.txt""",
        ),
    ),
    "text2text-generation": Declaration(
        "text_to_text.Text2TextGeneration",
        "translation",
        "an encoder-decoder, such as BART or T5",
        "eugenesiow/bart-paraphrase",
        route="/text2text",
        command=_text_to_text(
            "text2text",
            "an encoder-decoder's output for each text",
            "Rewrite each text with an encoder-decoder, to paraphrase or correct it.",
            """example:
  npformer text2text -m eugenesiow/bart-paraphrase "I love ice cream\"""",
        ),
    ),
    "text-generation": Declaration(
        "text_generation.TextGeneration",
        "causal-lm",
        "a causal language model",
        "openai-community/gpt2, or gpt2-austen in a checkout",
        route="/generate",
        command=Command(
            "generate",
            "a continuation of each text",
            """Continue each prompt or, with --chat, answer it. On a terminal, the
text of a single prompt appears as it is generated, and --chat without a text
starts a conversation.""",
            """examples:
  npformer generate -m openai-community/gpt2 "Once upon a time"
  npformer generate -m openai-community/gpt2 --max-new-tokens 9 \\
      --greedy --stop "." --stop "!" --file prompts.txt --json
  npformer generate -m Qwen/Qwen2.5-0.5B-Instruct --chat

By default at most 256 tokens (1024 in a chat) are sampled at temperature 0.7,
unless the model's generation_config.json has other settings.""",
            (
                option("--chat", "answer each text as a user's message, using the chat template", "chat"),
                option("--system TEXT", "with --chat: the system message", "system"),
                option("--max-new-tokens N", "maximum new tokens", "max_new_tokens", type=whole),
                option("--temperature T", "above 1: more variety; below 1: less (0.7)", "temperature", type=float),
                option("--top-k K", "sample from the K most likely tokens (50); 0: from all", "top_k", type=int),
                option("--top-p P", "sample from the most likely tokens with total probability P", "top_p", type=float),
                option("--min-p P", "sample from tokens at least P times as likely as the best", "min_p", type=float),
                option(
                    "--typical-p P",
                    "sample from the most typical tokens with total probability P",
                    "typical_p",
                    type=float,
                ),
                option("--seed N", "seed for sampling", "seed", type=int),
                option("--greedy", "take the most likely token at each step", "do_sample", action="store_false"),
                option("-b --num-beams N", "beam search with N beams, without sampling", "num_beams", type=whole),
                option("--best N", "show N texts for each prompt", "num_return_sequences", type=whole),
                option("--stop TEXT", "stop after TEXT; repeatable", "stop_strings", action="append"),
                option("--new-text", "leave the prompt out of the output", "return_full_text", action="store_false"),
            ),
            long=(long_or_error("prompts that are too long (%(default)s); truncate keeps the end"),),
            reads="prompt",
        ),
    ),
}
#: Alias -> task.
ALIASES = {alias: name for name, task in TASKS.items() for alias in task.aliases}
#: A model's head -> the default task of a pipeline.
TASK_OF = {task.head: name for name, task in reversed(TASKS.items())} | {"replaced-token": "feature-extraction"}
