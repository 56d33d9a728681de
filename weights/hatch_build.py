"""Puts the bundled model into the wheel. `NPFORMER_DEMO=0 pip install .` leaves it out, which saves 46 of 48 MB."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODEL = "distilbert-sst2"


class BundledModel(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the model before a wheel is built. An editable install needs no copy, because it finds the model in the
        checkout.
        """
        if version != "editable" and os.environ.get("NPFORMER_DEMO") != "0":
            build_data["force_include"][f"weights/{MODEL}"] = f"npformer/_weights/{MODEL}"
