"""Models with jobs of the service ``local``, for tests and the processes that they kill."""

from plugrl.core.config.view import ConfigView
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.jobs.fine_tuning import PreferenceExample, SupervisedExample
from plugrl.core.text.jobs.model_groups import SharedModelGroup
from plugrl.core.text.models import Models

SOURCE = {
    "path": None,
    "config": {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
    },
    "tokenizer": {"characters": "abcdefgh"},
    "dtype": "float32",
}

SUPERVISED = [
    SupervisedExample(
        [{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}]
    )
    for word in ("ab", "cd", "ef", "gh", "ac", "bd")
]
PREFERENCES = [
    PreferenceExample([{"role": "user", "content": word}], word[::-1], word)
    for word in ("ab", "cd", "ef", "gh", "ac", "bd")
]


def loaded(folder, source=SOURCE, inference=None, adapter=None, device="cpu", **options):
    """The models of a run in ``folder``: one, with jobs of the service ``local``."""
    section = {"type": "local", "batch_size": 2, "epochs": 2, **options}
    section["train"] = {"type": "local", "learning_rate": 0.01, **section.get("train", {})}
    tree = {
        "source": source,
        "inference": {"type": "transformers", **(inference or {})},
        "train": None,
        "fine_tune": section,
        "adapter": adapter,
    }
    models = ConfigView({"policy": tree}, "models")
    factory = Factory(default_registry())
    return Models.load(models, factory, seed=3, device=device, folder=folder)["policy"]


def group(folder, **options):
    return SharedModelGroup("provers", ["a", "b"], loaded(folder, **options))
