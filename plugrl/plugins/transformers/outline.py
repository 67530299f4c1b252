"""What can be said about a model from its configuration alone, without its weights."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from plugrl.core.hub.hub import model_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from transformers import PreTrainedModel

#: No model has more; their names alone would take minutes.
_MOST_LAYERS = 10_000
#: Options that hold an entry for each layer.
_BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")
#: Families whose keys stand in configurations of others too, where nothing reads them.
_FAMILIES = ("llama", "qwen3", "mixtral", "gemma2", "gpt2")


def _configuration(source: Any, *, layers: bool = False) -> Any:
    """The configuration of ``source``, with all its ``layers`` only where these matter."""
    from transformers import AutoConfig

    if source.path:
        folder = model_folder(source, weights=False)
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    options: dict[str, Any] = source.config.to_dict()
    if not layers and "num_hidden_layers" in options:
        # Many configurations list their layers, and there may be a billion of them.
        options = {k: v for k, v in options.items() if k not in _BY_LAYER}
        options["num_hidden_layers"] = 1
    return AutoConfig.for_model(options.pop("model_type"), **options)


def misspelt_keys(config: Any, written: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Keys that a configuration took though it knows none of the name, each with the close one.

    Its class keeps any key. One that resembles none may be read by somebody else, and classes that
    are not part of ``transformers`` may read keys that they do not declare.

    Args:
        config: of a model.
        written: the keys that it was made of.
    """
    from transformers import CONFIG_MAPPING

    kind = type(config)
    if not kind.__module__.startswith("transformers."):
        return
    known = _keys(kind)
    elsewhere = known.union(*(_keys(CONFIG_MAPPING[name]) for name in _FAMILIES))
    for key in written:
        if key in elsewhere or key.startswith("_") or key == "model_type":
            continue
        # Those of other versions are longer or shorter by a word.
        alike = [name for name in known if abs(len(name) - len(key)) <= 2]
        for close in difflib.get_close_matches(key, alike, 1, 0.85):
            yield key, close


def _keys(kind: type) -> set[str]:
    declared = {name for each in kind.__mro__ for name in inspect.get_annotations(each)}
    names = {*dir(kind), *declared, *inspect.signature(kind).parameters}
    return {name for name in names if not name.startswith("_")} | set(
        getattr(kind, "attribute_map", ())
    )


def context_length(source: Any) -> int | None:
    """The longest sequence of the model of ``source``; None: it has no limit or no such model."""
    try:
        length = getattr(_configuration(source), "max_position_embeddings", None)
    except Exception:
        # Another finding says what is wrong with the source.
        return None
    return length if isinstance(length, int) else None


def known_vocabulary(source: Any) -> int | None:
    """How many tokens the model of ``source`` has; None: its files do not say."""
    options = {} if source.path else source.config.to_dict()
    if not source.path and "vocab_size" not in options:
        # As it is made: of the characters, padding and end.
        characters = source.tokenizer.get("characters")
        return len(set(characters)) + 2 if characters else None
    try:
        size = getattr(_configuration(source), "vocab_size", None)
    except Exception:
        # Another finding says what is wrong with the source.
        return None
    return size if isinstance(size, int) else None


def vocabulary_size(source: Any, tokenizer: Any) -> int:
    """How many tokens the model of ``source`` has, at least those of its tokenizer."""
    known = int(tokenizer.vocabulary_size)
    try:
        return max(known, int(getattr(_configuration(source), "vocab_size", 0) or 0))
    except Exception:
        # A folder may hold a tokenizer alone.
        return known


def meta_model(options: Mapping[str, Any], layers: int | None = None) -> PreTrainedModel:
    """The model of a configuration on torch's device ``meta``, where weights take no memory.

    Args:
        options: of the ``transformers`` configuration, with ``model_type``.
        layers: how many it gets; None: those of the configuration.

    Raises:
        Exception: no such model can be made.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # What is written for each layer has the wrong length now.
    given = {key: value for key, value in options.items() if key not in _BY_LAYER}
    if layers is not None:
        given["num_hidden_layers" if "num_hidden_layers" in given else "n_layer"] = layers
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        config = AutoConfig.for_model(given.pop("model_type"), **given)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def parameter_count(options: Mapping[str, Any]) -> int | None:
    """How many parameters a model of a configuration has; None: no such model can be made.

    It is 2**63 where there are more than torch can count.

    Models of one layer and of two tell it, without memory, however many layers there are.

    Args:
        options: of the ``transformers`` configuration, with ``model_type``.
    """
    layers = options.get("num_hidden_layers")
    few = (1, 2) if isinstance(layers, int) and layers > 2 else (layers,)
    counts = []
    for number in few:
        try:
            model = meta_model(options, number)
        except Exception as error:
            return 2**63 if "overflow" in str(error) else None
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    return counts[0] if len(counts) == 1 else counts[0] + (layers - 1) * (counts[1] - counts[0])


def layer_names(source: Any) -> Sequence[str]:
    """The names of all layers of the model of ``source``; empty: there is no such model."""
    import torch
    from transformers import AutoModelForCausalLM

    layers = None if source.path else source.config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        return ()
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(_configuration(source, layers=True))
    except Exception:
        return ()
    return [name for name, _ in model.named_modules() if name]


def options_of(source: Any) -> dict[str, Any]:
    """The ``transformers`` configuration of ``source``, with ``model_type``; empty: there is none.

    It has the size of the vocabulary, which a source of characters does not write.
    """
    try:
        if not source.path:
            options: dict[str, Any] = source.config.to_dict()
            # What is not written has the defaults of its class.
            whole = _configuration(source).to_dict()
            return {**whole, **options, "vocab_size": known_vocabulary(source) or 0}
        return dict(_configuration(source).to_dict())
    except Exception:
        # Another finding says what is wrong with the source.
        return {}


def adapter_matrices(model: PreTrainedModel, adapter: Any) -> Iterator[torch.nn.Parameter]:
    """The matrices that a LoRA adapter trains, without memory.

    Args:
        model: as :func:`meta_model` gives it.
        adapter: its section.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    wanted = adapter.target_modules
    for path, module in model.named_modules():
        if module is head or not isinstance(module, (torch.nn.Linear, Conv1D)):
            continue
        if wanted == "auto" or any(f".{path}".endswith(f".{each}") for each in wanted):
            for width in module.weight.shape:
                yield torch.nn.Parameter(torch.empty(adapter.r, width, device="meta"))
