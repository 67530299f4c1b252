"""Models and tokenizers from a folder, or from a configuration with random weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import find_hub, is_hub_name, model_folder
from plugrl.core.run.process import threads
from plugrl.core.run.process.memory import (
    ANY_HOST,
    TRAINED_COPIES,
    lacks_memory,
    memory_shortage,
    within_memory,
)
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.memory_advice import loading_shortage
from plugrl.plugins.transformers.engine.projections import place_side_by_side
from plugrl.plugins.transformers.memory_pool import SharedPool
from plugrl.plugins.transformers.outline import misspelt_keys, parameter_count
from plugrl.plugins.transformers.quantization import (
    quantization_fault,
    quantize,
    quantized_layers,
)
from plugrl.plugins.transformers.tokenizer import HubTokenizer, character_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from plugrl.core.config.preflight import Finding, Preflight

logger = logging.getLogger(__name__)
_UNUSABLE = "not a usable model folder; one made by save_pretrained is"
_NO_WEIGHTS = (
    "holds a tokenizer alone, and the weights are loaded here; path (a model folder) or config "
    "(with model_type) is required"
)
_NO_TOKENIZER = "it holds no tokenizer (tokenizer.json)"


def load_model(spec: ModelSpec) -> PreTrainedModel:
    """The model of ``spec`` on its device; random weights depend on its seed alone.

    What another service of the model loaded is taken instead of loading it again.

    Raises:
        ConfigError: the folder or the configuration cannot be used.
        RunError: there is not the memory.
    """
    with within_memory(lambda: loading_shortage(spec.name, spec.device, spec.source.dtype)):
        return _load_or_take(spec)


def _load_or_take(spec: ModelSpec) -> PreTrainedModel:
    loaded = spec.loaded
    if loaded is not None and loaded.model is not None:
        taken: PreTrainedModel = loaded.model
        loaded.model, loaded.shared = None, loaded.shares and spec.adapter is None
        if not loaded.shared:
            for weight in taken.parameters():
                weight.data = weight.data.clone()
            _arrange(taken)
        return taken
    model = _from_folder(spec) if spec.source.path else _from_config(spec)
    if getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None):
        # Before 5.24, transformers chose attention of torch here, which leaves the cap out.
        model.set_attn_implementation("eager")
    threads.widen(model.num_parameters())
    _set_dtype(model, getattr(torch, spec.source.dtype))
    kind = spec.source.get("quantization")
    if kind is not None:
        quantize(model, kind, spec.device, f"models.{spec.name}.source.quantization")
    model = model.to(device=spec.device)
    if not spec.source.path:
        _check_sizes(model, f"models.{spec.name}.source.config")
    _arrange(model)
    if loaded is not None:
        loaded.model = _twin(model)
        if loaded.shares and model.device.type == "cuda":
            loaded.memory = SharedPool()
    return model


def _set_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round what a model's folder holds, and nothing else.

    The frequencies of rotary embeddings stay in float32, as ``transformers`` has them: rounded to
    half precision, they turn a token at position 1,000 by a whole radian too much.
    """
    for weight in model.state_dict(keep_vars=True).values():
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)


def _arrange(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        # The engine computes those of one input together, with the weights that are trained.
        place_side_by_side(model)


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same modules once more, over the same weights."""
    weights = {
        id(weight): torch.nn.Parameter(weight.detach(), weight.requires_grad)
        for weight in model.parameters()
    }
    # Quantised ones are not trained, so that no service writes to them while another reads.
    parts = {id(p): p for layer in quantized_layers(model).values() for p in layer.buffers()}
    return copy.deepcopy(model, {**weights, **parts})


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """The tokenizer of ``spec``.

    Raises:
        ConfigError: the folder has none, or no characters are given.
    """
    template = spec.source.tokenizer.get("chat_template") if "tokenizer" in spec.source else None
    if spec.source.path:
        folder = _folder(spec, weights=False)
        try:
            return hub_tokenizer(folder, template)
        except Exception as error:
            raise ConfigError(f"{_where(spec)}: no usable tokenizer: {_line(error)}") from error
    characters = spec.source.tokenizer.characters
    if not characters:
        raise ConfigError(
            f"models.{spec.name}.source.tokenizer.characters is needed for a model that is built "
            "from a configuration"
        )
    return character_tokenizer(
        characters, template, _token_ids(spec.source.config.get("eos_token_id"))
    )


def hub_tokenizer(folder: str | Path, chat_template: str | None = None) -> HubTokenizer:
    """The tokenizer of a folder, with the ends that the folder names for generation.

    Raises:
        ConfigError: it has no end-of-sequence token.
        Exception: ``transformers`` cannot load it.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return HubTokenizer(tokenizer, chat_template, *generation_ends(folder))


def generation_ends(folder: str | Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The tokens and the texts at which ``generate`` of ``transformers`` stops; empty: none.

    They are those of ``generation_config.json``, or else of the model's configuration.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, TypeError):
        # As models are loaded: a file that is missing or cannot be read does not count.
        try:
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            found = GenerationConfig.from_model_config(config)
        except Exception:
            # A tokenizer alone; what is wrong with a model is said where it is loaded.
            return (), ()
    named = getattr(found, "stop_strings", None)
    texts = [named] if isinstance(named, str) else named or ()
    return _token_ids(found.eos_token_id), tuple(t for t in texts if isinstance(t, str) and t)


def _token_ids(value: Any) -> tuple[int, ...]:
    """One token id, a list of them or none."""
    return tuple(
        int(token)
        for token in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(token, int) and token >= 0
    )


def source_findings(check: Preflight) -> Iterator[Finding]:
    """What is wrong with the source of the model whose service is asked; loads no weights."""
    name = check.path.split(".")[1]
    source, where = check.root.models[name].source, f"models.{name}.source"
    quantized = quantization_fault(check.root.models[name])
    if quantized is not None:
        yield f"{where}.quantization", quantized
    if source.path:
        try:
            folder = model_folder(source, weights=False)
        except ConfigError as error:
            yield f"{where}.path", str(error)
            return
        message = _folder_fault(folder, source)
        if message:
            yield f"{where}.path", f"{source.path}: {message}"
        return
    if not source.config:
        yield where, _NO_WEIGHTS
        return
    if not source.tokenizer.characters:
        yield f"{where}.tokenizer.characters", "is needed for a model built from a configuration"
    from transformers import AutoConfig

    options: dict[str, Any] = source.config.to_dict()
    for_here, for_any_host = _size_faults(check.root.models[name], options)
    if for_here is not None:
        if check.path.endswith(".inference"):
            if for_any_host is not None:
                yield f"{where}.config", for_any_host
            else:
                logger.warning("%s.config: on this machine, %s", where, for_here)
        # A configuration alone may list its layers, which takes for ever.
        return
    try:
        config = AutoConfig.for_model(options.pop("model_type"), **options)
    except Exception as error:
        yield f"{where}.config", _line(error)
        return
    fault = _class_fault(config)
    if fault is not None:
        yield f"{where}.config.model_type", fault
        return
    for key, close in misspelt_keys(config, options):
        yield (
            f"{where}.config.{key}",
            f"{type(config).__name__} has no such key; did you mean {close}?",
        )
    for key in ("attn_implementation", "_attn_implementation"):
        fault = None if options.get(key) is None else _attention_fault(config)
        if fault is not None:
            yield f"{where}.config.{key}", f"{options[key]} {fault}"


def _class_fault(config: PretrainedConfig) -> str | None:
    """Why a configuration makes no model that answers token by token; None: it makes one."""
    from transformers import AutoModelForCausalLM

    if type(config) in AutoModelForCausalLM._model_mapping:
        return None
    return (
        f"transformers has no causal language model of the type {config.model_type}; take another "
        "type, such as qwen3"
    )


def _attention_fault(config: PretrainedConfig) -> str | None:
    """Why the attention that a configuration names cannot be used; None: it can."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            AutoModelForCausalLM.from_config(config)
    except (ImportError, ValueError) as error:
        if "ttention" in str(error) or "attn" in str(error):
            reason = _line(error).partition(": ")[2][:200]
            return f"cannot be used here ({reason}); leave it out, and torch's own is taken"
    return None


def _size_faults(model: Any, options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Why this machine cannot train the model of a configuration, and why no host can."""
    trained = model.get("train") is not None and model.get("adapter") is None
    copies = TRAINED_COPIES if trained else 1
    size = 4 if model.source.dtype == "float32" else 2
    given = {"vocab_size": len(model.source.tokenizer.characters or ""), **options}
    count = _beyond_memory(given, size, copies)
    if count is None:
        return None, None
    return memory_shortage(count, size, copies), memory_shortage(count, size, copies, ANY_HOST)


def _beyond_memory(options: Mapping[str, Any], size: int, copies: int) -> int | None:
    """The parameters of a configuration, if this machine cannot hold them; None: it can.

    ``options`` have the size of the vocabulary; the rest is as of
    :func:`~plugrl.core.run.process.memory.memory_shortage`.
    """
    if {"hidden_size", "intermediate_size", "num_hidden_layers"} <= options.keys():
        # Small models are known as such without the seconds that importing their code takes.
        width = max(value for value in options.values() if isinstance(value, int))
        if memory_shortage(16 * width**2 * options["num_hidden_layers"], size, copies) is None:
            return None
    count = parameter_count(options)
    return None if count is None or memory_shortage(count, size, copies) is None else count


def tokenizer_findings(check: Preflight) -> Iterator[Finding]:
    """What is wrong with the source of a model whose weights are elsewhere: its tokenizer."""
    name = check.path.split(".")[1]
    source, where = check.root.models[name].source, f"models.{name}.source"
    quantized = quantization_fault(check.root.models[name])
    if quantized is not None:
        yield f"{where}.quantization", quantized
    if not source.path:
        if not source.tokenizer.characters:
            yield f"{where}.path", "a folder with the model's tokenizer is needed"
        return
    try:
        folder = model_folder(source, weights=False)
    except ConfigError as error:
        yield f"{where}.path", f"{error} (the tokenizer is needed)"
        return
    if not _has_tokenizer(folder):
        yield f"{where}.path", f"{source.path}: {_NO_TOKENIZER}"


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))


def _folder_fault(folder: Path, source: Any) -> str:
    """What is wrong with the folder of a model, of which the hub may not have given the weights."""
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        weights = sorted(folder.glob("*.safetensors"))
        for file in weights:
            with safe_open(file, "pt"):
                pass
    except (Exception, SafetensorError) as error:
        return f"{_UNUSABLE}: {_line(error)}"
    fault = _class_fault(config)
    if fault is not None:
        return fault
    if is_hub_name(source.path):
        fault = find_hub().model_fault(source.path, source.get("revision"))
        if fault is not None:
            return fault
    elif not weights and not list(folder.glob("*.bin")):
        return f"{_UNUSABLE}: it holds no weights (*.safetensors)"
    if not _has_tokenizer(folder):
        return _NO_TOKENIZER
    return ""


def _from_folder(spec: ModelSpec) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    folder = _folder(spec, weights=True)
    try:
        with without_bars():
            model = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, dtype="auto", trust_remote_code=False
            )
    except Exception as error:
        raise ConfigError(f"{_where(spec)}: {_UNUSABLE}: {_line(error)}") from error
    return _as_model(model)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep the bars of ``transformers`` off the terminal: a run has its own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_config(spec: ModelSpec) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = spec.source.config.to_dict()
    if not options:
        raise ConfigError(f"models.{spec.name}.source {_NO_WEIGHTS}")
    kind = options.pop("model_type")
    tokenizer = load_tokenizer(spec)
    options.setdefault("vocab_size", tokenizer.vocabulary_size)  # type: ignore[attr-defined]
    options.setdefault("pad_token_id", tokenizer.pad_token_id)
    options.setdefault("eos_token_id", tokenizer.eos_token_id)
    options.setdefault("bos_token_id", None)
    where = f"models.{spec.name}.source.config"
    count = _beyond_memory({**options, "model_type": kind}, 4, 1)
    if count is not None:
        raise ConfigError(f"{where}: {memory_shortage(count, 4, 1)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
        except Exception as error:
            raise ConfigError(f"{where}: {_line(error)}") from error
    return _as_model(model)


@torch.no_grad()
def _check_sizes(model: PreTrainedModel, where: str) -> None:
    """Compute two tokens: configurations are taken whose parts do not fit each other.

    Raises:
        ConfigError: it cannot be done.
    """
    try:
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
    except Exception as error:
        # Whatever the code of a model raises.
        if lacks_memory(error):
            raise
        raise ConfigError(
            f"{where}: a model of these sizes cannot compute ({_line(error)}); check its heads, "
            "layers and experts"
        ) from error


def _as_model(model: Any) -> PreTrainedModel:
    model.eval()
    return model  # type: ignore[no-any-return]


def _folder(spec: ModelSpec, *, weights: bool) -> str:
    try:
        return str(model_folder(spec.source, weights=weights))
    except ConfigError as error:
        raise ConfigError(f"models.{spec.name}.source.path {error}") from error


def _where(spec: ModelSpec) -> str:
    return f"models.{spec.name}.source.path {spec.source.path}"


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
