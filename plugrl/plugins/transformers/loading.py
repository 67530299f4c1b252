"""Models and tokenizers from a folder, or from a configuration with random weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.text.services import ModelSpec, Tokenizer
from plugrl.plugins.transformers.tokenizer import HubTokenizer, character_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(spec: ModelSpec) -> PreTrainedModel:
    """The model of ``spec`` on its device; random weights depend on its seed alone.

    Raises:
        ConfigError: the folder or the configuration cannot be used.
    """
    dtype = getattr(torch, spec.source.dtype)
    model = _from_folder(spec) if spec.source.path else _from_config(spec)
    return model.to(device=spec.device, dtype=dtype)


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """The tokenizer of ``spec``.

    Raises:
        ConfigError: the folder has none, or no characters are given.
    """
    if spec.source.path:
        from transformers import AutoTokenizer

        folder = _folder(spec)
        try:
            return HubTokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except Exception as error:
            raise ConfigError(f"{_where(spec)}: no usable tokenizer: {_line(error)}") from error
    characters = spec.source.tokenizer.characters
    if not characters:
        raise ConfigError(
            f"models.{spec.name}.source.tokenizer.characters is needed for a model that is built "
            "from a configuration"
        )
    return character_tokenizer(characters)


def _from_folder(spec: ModelSpec) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    folder = _folder(spec)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ConfigError(
            f"{_where(spec)}: not a usable model folder; one made by save_pretrained is: "
            f"{_line(error)}"
        ) from error
    return _as_model(model)


def _from_config(spec: ModelSpec) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = spec.source.config.to_dict()
    kind = options.pop("model_type")
    tokenizer = load_tokenizer(spec)
    options.setdefault("vocab_size", tokenizer.vocabulary_size)  # type: ignore[attr-defined]
    options.setdefault("pad_token_id", tokenizer.pad_token_id)
    options.setdefault("eos_token_id", tokenizer.eos_token_id)
    options.setdefault("bos_token_id", None)
    where = f"models.{spec.name}.source.config"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
        except Exception as error:
            raise ConfigError(f"{where}: {_line(error)}") from error
    return _as_model(model)


def _as_model(model: Any) -> PreTrainedModel:
    model.eval()
    return model  # type: ignore[no-any-return]


def _folder(spec: ModelSpec) -> str:
    path = Path(os.path.expanduser(spec.source.path))
    if not path.is_dir():
        raise ConfigError(f"{_where(spec)}: there is no such folder; models are never downloaded")
    return str(path)


def _where(spec: ModelSpec) -> str:
    return f"models.{spec.name}.source.path {spec.source.path}"


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
