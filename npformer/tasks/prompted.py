"""Tasks with a prompt before each text, such as "query: " in sentence-transformers folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npformer.common.checks import unknown
from npformer.common.errors import NpformerError
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
                raise NpformerError("prompt_name: conflicts with prompt=; give only one of the two")


class PromptedTask(Task):
    """A task with the prompts of a sentence-transformers folder, in its `recipe`."""

    options_type = PromptOptions
    recipe: EmbeddingRecipe

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
