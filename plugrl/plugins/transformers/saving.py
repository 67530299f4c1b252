"""Model folders that are written: what the source's folder says of the model stays said there."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.hub.hub import model_folder
from plugrl.plugins.transformers.loading import without_bars

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.inference.tokenizer import Tokenizer

_GENERATION = "generation_config.json"


class SourceForm:
    """The data type and format of a model's source, for saving; computation may use another.

    Args:
        model: as it was loaded, in any data type.
        source: where it comes from.
    """

    def __init__(self, model: PreTrainedModel, source: ConfigView) -> None:
        # A folder's model has the folder's data type in its configuration.
        self.dtype: torch.dtype = getattr(model.config, "dtype", None) or model.dtype
        self._folder = model_folder(source, weights=False) if source.path else None

    def cast(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``weights`` in the source's data type; what shares memory still does."""
        made: dict[tuple[Any, ...], torch.Tensor] = {}
        cast: dict[str, torch.Tensor] = {}
        for name, weight in weights.items():
            if not weight.is_floating_point():
                cast[name] = weight
                continue
            place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
            if place not in made:
                made[place] = weight.detach().to(self.dtype)
            cast[name] = made[place]
        return cast

    def save(
        self,
        model: PreTrainedModel,
        weights: Mapping[str, torch.Tensor],
        tokenizer: Tokenizer,
        folder: Path,
    ) -> None:
        """Write a model as ``from_pretrained`` reads it, with its tokenizer.

        The source's ``generation_config.json`` is copied word for word.
        """
        with without_bars():
            model.save_pretrained(folder, state_dict=self.cast(weights))
        # It has the data type in which the model is computed.
        config = copy.deepcopy(model.config)
        config.dtype = self.dtype
        config.save_pretrained(folder)
        tokenizer.wrapped.save_pretrained(folder)  # type: ignore[attr-defined]
        own = self._folder and self._folder / _GENERATION
        if own and own.is_file():
            shutil.copyfile(own, folder / _GENERATION)
