"""Sequence classifiers of one label: the form in which ``transformers`` keeps reward models."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.core.text.inference.tokenizer import Tokenizer
    from plugrl.plugins.transformers.saving import SourceForm


def write_classifier(
    model: PreTrainedModel,
    form: SourceForm,
    weights: Mapping[str, torch.Tensor],
    head: torch.nn.Linear,
    tokenizer: Tokenizer,
    folder: Path,
) -> None:
    """Write a folder that ``AutoModelForSequenceClassification.from_pretrained`` reads.

    Its logit is the head's number of the hidden state at the last token.

    Args:
        model: a causal language model, whose architecture the folder has.
        form: in which it is written.
        weights: of the model, by name.
        head: from a hidden state to the reward; its bias is 0.
        tokenizer: written beside.
        folder: where to.

    Raises:
        UsageError: the architecture has no such classifier.
    """
    classifier = _empty(model, tokenizer)
    prefix = f"{model.base_model_prefix}."
    body = {name: value for name, value in weights.items() if name.startswith(prefix)}
    kind = model.config.model_type
    try:
        fit = classifier.load_state_dict({**body, "score.weight": head.weight}, strict=False)
    except RuntimeError as error:
        raise UsageError(f"a {kind} model has another head than a classifier: {error}") from error
    if fit.missing_keys or fit.unexpected_keys:
        names = ", ".join([*fit.missing_keys, *fit.unexpected_keys][:3])
        raise UsageError(
            f"the sequence classifier of a {kind} model has other weights than the model and a "
            f"linear head ({names}), so that this reward model cannot be written as one"
        )
    form.save(classifier, classifier.state_dict(), tokenizer, folder)


def _empty(model: PreTrainedModel, tokenizer: Tokenizer) -> Any:
    from transformers import AutoModelForSequenceClassification

    config: Any = copy.deepcopy(model.config)
    config.num_labels = 1
    # A classifier scores the last token that is no padding, which the end must not be taken for.
    distinct = tokenizer.pad_token_id != tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id if distinct else None
    config.architectures = None
    try:
        with torch.random.fork_rng(devices=[]):
            made = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise UsageError(
            f"transformers has no sequence classifier for a {config.model_type} model; take a "
            "model of another architecture, such as qwen3 or llama"
        ) from error
    return made.to(dtype=model.dtype)
