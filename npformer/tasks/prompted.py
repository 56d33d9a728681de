"""Tasks with a prompt before each text, such as "query: " in sentence-transformers folders."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from npformer.common.checks import unknown, whole
from npformer.common.errors import NpformerError
from npformer.model import Model
from npformer.tasks.options import Options
from npformer.tasks.sentence_folder import EmbeddingRecipe
from npformer.tasks.task import Task
from npformer.text.inputs import Pair, as_text


@dataclass(frozen=True)
class PromptOptions(Options):
    """Options of tasks with prompts: the prompt itself, or its name in the folder."""

    prompt: str | None = None
    prompt_name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None:
            as_text(self.prompt, "prompt")
            if self.prompt_name is not None:
                raise NpformerError("prompt_name: conflicts with prompt=; pass only one of the two")


class PromptedTask(Task):
    """A task with prompts from a sentence-transformers folder, stored in `recipe`."""

    options_type = PromptOptions
    recipe: EmbeddingRecipe  # a subclass sets this before it calls `__init__`

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(model, **options)
        if self.recipe.max_length is not None:  # overrides the tokenizer's model_max_length
            self.encoder.limit = min(self.recipe.max_length, self.model.config.max_length)

    @property
    def max_seq_length(self) -> int:
        """The number of tokens to which texts are truncated. Can be set, up to the model's number of positions."""
        return self.encoder.limit

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        self.encoder = copy(self.encoder)  # a copy, so that calls in progress keep the old limit
        self.encoder.limit = whole("max_seq_length", tokens, 3, self.model.config.max_length)

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        settled: PromptOptions = super().settle(options, given)
        if settled.prompt_name is not None:
            name = as_text(settled.prompt_name, "prompt_name")
            if name not in self.recipe.prompts:
                raise unknown("prompt_name", name, self.recipe.prompts)
        return settled

    def prompt(self, options: Any) -> str:
        """Returns the prompt for each text: the given prompt, else the folder's default, else ""."""
        if options.prompt is not None:
            return str(options.prompt)
        name = options.prompt_name if options.prompt_name is not None else self.recipe.default_prompt_name
        return "" if name is None else self.recipe.prompts[name]

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        return [self.cased(self.prompt(options) + as_text(item))]

    def cased(self, text: str) -> str:
        return text.lower() if self.recipe.lowercase else text
