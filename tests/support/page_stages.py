"""Runs a page of `npformer.plain` and records every stage. `edited_pages.py` does this with mistakes in the source."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from npformer.golden.page_edits.stages import Recorder, Stages
from npformer.pages.find import PAGES
from npformer.pages.run import answers


class Page(Stages):
    """A page and the pages that it imports, instrumented."""

    def __init__(self, model_type: str) -> None:
        super().__init__()
        self.modules: dict[str, types.ModuleType] = {}
        self.module = self._load(f"npformer.plain.{PAGES.get(model_type, model_type)}")

    def run(self, model: Any, text: Any) -> dict[str, np.ndarray]:
        """Returns the stages of one text, by name."""
        return self.stages_of(model.config, model.weights, text)

    def stages_of(self, config: Any, weights: Mapping[str, Any], text: Any) -> dict[str, np.ndarray]:
        """Returns the stages of a text, like `run`, for a config and weights without a model."""
        return self.recorded(lambda: answers(self.module, config, weights, text))

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if str(getattr(function, "__module__", "")).startswith("npformer.plain."):
            # a function that is an argument, such as a feed-forward network
            function = getattr(self._load(function.__module__), function.__name__)
        return super().call(name, function, *args, **kwargs)

    def _load(self, name: str) -> types.ModuleType:
        if name in self.modules:
            return self.modules[name]
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        source = Path(spec.origin).read_text(encoding="utf-8")
        module = self.modules[name] = types.ModuleType(name)
        module.__dict__["_page"] = self
        tree = Recorder().visit(ast.parse(source))
        for node in [each for each in tree.body if isinstance(each, ast.ImportFrom)]:
            if str(node.module).startswith("npformer.plain."):
                other = self._load(str(node.module))
                module.__dict__.update({each.asname or each.name: getattr(other, each.name) for each in node.names})
                tree.body.remove(node)
        exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)
        return module
