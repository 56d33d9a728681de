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
A blank line stays blank, so that line N of the output belongs to line N of the
input.""",
        epilog=epilog,
        options=(
            *text_options(),
            *model_options(),
            *more,
            option("-b --beams N", "search with N beams (the model's setting)", "num_beams", type=whole),
            option("--best N", "show the N best answers to a text", "num_return_sequences", type=whole),
            option("--max-tokens N", "most tokens of an answer (the model's setting)", "max_new_tokens", type=whole),
            option("--min-tokens N", "fewest tokens of an answer (the model's setting)", "min_new_tokens", type=whole),
            option("--length-penalty P", "above 1 favours long answers", "length_penalty", type=float),
            option("--sample", "draw words by their probability", "do_sample"),
            option("--seed N", "seed of --sample: the same seed draws the same words", "seed", type=int),
            option(
                "--long",
                "what to do with too long a text (%(default)s)",
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
        description="""Write on after each text, the prompt. On a terminal the text of one prompt is
shown as it is written.""",
        epilog="""examples:
  npformer generate -m openai-community/gpt2 "Once upon a time"
  npformer generate -m openai-community/gpt2 --max-new-tokens 9 \\
      --greedy --stop "." --stop "!" --file prompts.txt --json

Tokens are drawn at a temperature of 0.7, 256 at most, unless the options or the
model's generation_config.json say otherwise.""",
        options=(
            *text_options("prompt"),
            option(
                "-m --model MODEL",
                "a folder, a Hugging Face id, or gpt2-austen in a checkout (required)",
                default=None,
            ),
            *LOADING,
            option("--max-new-tokens N", "most tokens that are written", "max_new_tokens", type=whole),
            option("--temperature T", "above 1 draws more freely, below 1 less (0.7)", "temperature", type=float),
            option("--top-k K", "draw from the K likeliest tokens (50); 0: from all", "top_k", type=int),
            option("--top-p P", "draw from the likeliest tokens that make up P", "top_p", type=float),
            option("--min-p P", "draw from tokens at least P as likely as the likeliest", "min_p", type=float),
            option("--typical-p P", "draw from the most typical tokens that make up P", "typical_p", type=float),
            option("--seed N", "the same seed draws the same tokens", "seed", type=int),
            option("--greedy", "take the likeliest token each time", "do_sample", action="store_false"),
            option("-b --num-beams N", "search with N beams; nothing is drawn", "num_beams", type=whole),
            option("--best N", "show N texts of each prompt", "num_return_sequences", type=whole),
            option("--stop TEXT", "end a text that has TEXT; can be given again", "stop_strings", action="append"),
            option("--new-text", "show the text without its prompt", "return_full_text", action="store_false"),
            option(
                "--long",
                "what to do with too long a prompt (%(default)s); truncate keeps its end",
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
        (option("--to CODE", "the language, for a model with several (fra, deu, ...)", "to"),),
    ),
    "summarize": _text_to_text(
        "summarization",
        "Summarize each text, a line of a file.",
        """example:
  npformer summarize -m facebook/bart-large-cnn \\
      --max-tokens 60 --long truncate --file reviews.txt""",
        "summary_text",
        "summaries",
    ),
    "text2text": _text_to_text(
        "text2text-generation",
        "Answer each text with an encoder-decoder, which may paraphrase or correct it.",
        """example:
  npformer text2text -m eugenesiow/bart-paraphrase "I love ice cream\"""",
        "generated_text",
        "generated_texts",
    ),
}
