"""The table of commands for models that write texts; `task_commands.py` has the other tasks."""

from __future__ import annotations

from functools import partial

from npformer.cli import answers
from npformer.cli.arguments import JSON, LOADING, Option, dataset_options, model_options, option, text_options, whole
from npformer.cli.task_commands import TaskCommand


def _text_to_text(
    task: str, description: str, epilog: str, key: str, several: str, more: tuple[Option, ...] = ()
) -> TaskCommand:
    """The command of a task that writes a text from each text: `key` of an answer, `several` in JSON for --best."""
    return TaskCommand(
        task=task,
        description=f"""{description}
Blank lines stay blank: line N of the output belongs to line N of the input.""",
        epilog=epilog,
        options=(
            *text_options(),
            *model_options(),
            *more,
            option("-b --beams N", "search with N beams (the model's setting)", "num_beams", type=whole),
            option("--best N", "show the N best answers for each text", "num_return_sequences", type=whole),
            option("--max-tokens N", "most tokens in an answer (the model's setting)", "max_new_tokens", type=whole),
            option("--min-tokens N", "fewest tokens in an answer (the model's setting)", "min_new_tokens", type=whole),
            option("--length-penalty P", "values above 1 favour long answers", "length_penalty", type=float),
            option("--sample", "sample words by their probability", "do_sample"),
            option("--seed N", "seed for --sample", "seed", type=int),
            option(
                "--long",
                "how to handle texts that are too long (%(default)s)",
                "long",
                choices=("error", "truncate"),
                default="error",
            ),
            JSON,
            *dataset_options(),
        ),
        shown=partial(answers.from_text, key),
        named=partial(answers.named_from_text, key, several),
        keeps_lines=True,
    )


WRITING_COMMANDS = {
    "generate": TaskCommand(
        task="text-generation",
        description="""Continue each text, the prompt. On a terminal, the text of a single prompt
appears as it is generated.""",
        epilog="""examples:
  npformer generate -m openai-community/gpt2 "Once upon a time"
  npformer generate -m openai-community/gpt2 --max-new-tokens 9 \\
      --greedy --stop "." --stop "!" --file prompts.txt --json

By default at most 256 tokens are sampled at temperature 0.7, unless the model's
generation_config.json has other settings.""",
        options=(
            *text_options("prompt"),
            option(
                "-m --model MODEL",
                "a folder, a Hugging Face id, or gpt2-austen in a checkout (required)",
                default=None,
            ),
            *LOADING,
            option("--max-new-tokens N", "most new tokens", "max_new_tokens", type=whole),
            option("--temperature T", "above 1: more varied, below 1: less (0.7)", "temperature", type=float),
            option("--top-k K", "sample from the K likeliest tokens (50); 0: from all", "top_k", type=int),
            option("--top-p P", "sample from the likeliest tokens with total probability P", "top_p", type=float),
            option("--min-p P", "sample from tokens at least P times as likely as the best", "min_p", type=float),
            option(
                "--typical-p P", "sample from the most typical tokens with total probability P", "typical_p", type=float
            ),
            option("--seed N", "seed for sampling", "seed", type=int),
            option("--greedy", "take the likeliest token each time", "do_sample", action="store_false"),
            option("-b --num-beams N", "beam search with N beams, without sampling", "num_beams", type=whole),
            option("--best N", "show N texts for each prompt", "num_return_sequences", type=whole),
            option("--stop TEXT", "stop after TEXT; repeatable", "stop_strings", action="append"),
            option("--new-text", "leave the prompt out of the text", "return_full_text", action="store_false"),
            option(
                "--long",
                "how to handle prompts that are too long (%(default)s); truncate keeps the end",
                "long",
                choices=("error", "truncate"),
                default="error",
            ),
            JSON,
            *dataset_options(),
        ),
        shown=answers.generated,
        named=lambda answer: {"generated_texts": [each["generated_text"] for each in answer]},
        pieces=answers.as_written,
    ),
    "translate": _text_to_text(
        "translation",
        "Translate each text.",
        """examples:
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      "A dog runs through the snow."
  npformer translate -m Helsinki-NLP/opus-mt-en-ROMANCE \\
      --to fra --file letter.txt > letter.fr.txt
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      --beams 4 --best 3 --json < sentences.txt""",
        "translation_text",
        "translations",
        (option("--to CODE", "target language, for a multilingual model (fra, deu, ...)", "to"),),
    ),
    "summarize": _text_to_text(
        "summarization",
        "Summarize each text.",
        """example:
  npformer summarize -m facebook/bart-large-cnn \\
      --max-tokens 60 --long truncate --file reviews.txt""",
        "summary_text",
        "summaries",
    ),
    "text2text": _text_to_text(
        "text2text-generation",
        "Rewrite each text with an encoder-decoder, to paraphrase or correct it.",
        """example:
  npformer text2text -m eugenesiow/bart-paraphrase "I love ice cream\"""",
        "generated_text",
        "generated_texts",
    ),
}
