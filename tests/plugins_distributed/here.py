"""Models, batches and losses for the service ``fsdp``, and one rank in the process of the test."""

import copy
import socket
from dataclasses import replace

import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss, masked_sum
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.distributed import wire
from plugrl.plugins.distributed.rank import RankWorker
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.testing import tiny

#: As of the fixture ``cluster``, which is joined by all runs of a process.
CLUSTER = {"cpus": 12, "object_store_memory": 100.0}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MODELS = {
    "qwen3": {"model_type": "qwen3"},
    # Embedding and projection are one weight.
    "tied": {"model_type": "qwen3", "tie_word_embeddings": True},
    # Learned positions, matrices the other way round, biases.
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    # Rows cannot be packed.
    "gemma2": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 8,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def spec(model="qwen3", *, dtype="float32", adapter=None, seed=0):
    """What a service is given to load one of the models."""
    own = {} if model == "gpt2" else SIZES
    source = {
        "path": None,
        "config": {**own, **MODELS[model]},
        "tokenizer": {"characters": "abcdefghijklmnop"},
        "dtype": dtype,
    }
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "auto", **(adapter or {})}
    view = ConfigView(source, checked=True)
    made = ModelSpec("policy", view, seed, "cpu", trained=True, train_steps=20)
    return made if adapter is None else replace(made, adapter=ConfigView(lora, checked=True))


#: Tokens and which of them are trained: unequal lengths, a row of a prompt alone, equal prompts.
ROWS = [
    ([2, 3, 4, 5, 6, 1], [0, 0, 1, 1, 1, 1]),
    ([2, 3, 7, 1], [0, 0, 1, 1]),
    ([4, 5, 6, 7, 8, 9, 2, 1, 3, 3, 5], [0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]),
    ([3, 3, 3], [0, 0, 0]),
    ([9, 1], [0, 1]),
    ([4, 5, 1], [0, 1, 1]),
    ([2, 3, 8, 8, 1], [0, 0, 1, 1, 1]),
]


def batch(rows=ROWS):
    """Rows of an optimizer step, whose loss is a mean over all trained tokens."""
    made = Batch.from_trajectories([Trajectory(*row) for row in rows], temperature=0.7)
    mask = made.values["loss_mask"]
    made.values[LOSS_WEIGHTS] = aggregation_weights(mask, "token-mean")
    made.values["advantages"] = mask * torch.linspace(-1, 1, len(rows))[:, None]
    return made


def everything(logp, batch, config):
    """A loss of all that a pass can give, none of them linear."""
    entropy, values = batch.values["entropy"], batch.values["values"]
    per_token = -batch.values["advantages"] * logp.exp() - 0.1 * entropy + (values - 1).square()
    return per_token, {"entropy": masked_sum(entropy, batch.values["loss_mask"])}


everything.needs = ("entropy", "values")


def policy_gradient(logp, batch, config):
    """The gradient of REINFORCE."""
    return -batch.values["advantages"] * logp, {"nll": masked_sum(-logp, batch.values["loss_mask"])}


def loss(options):
    """The loss for a service with these options."""
    return WeightedLoss(everything if options.get("value_head") else policy_gradient, None)


def local(model, options):
    """The service ``local``, for what is expected."""
    service = LocalTrainService({"learning_rate": 0.01, **options})
    service.load(model)
    return service


def moments(service):
    """The first moments of AdamW, which hold the gradient after one step, by their numbers."""
    state = copy.deepcopy(service.state_dict())["optimizer"]
    return {int(number): own["exp_avg"] for number, own in state.items()}


class RankHere:
    """The ranks of a service of one worker, in this process."""

    turns = ((0, 1),)
    places = ()

    def __init__(self):
        # The process group is there already, so that nobody joins one.
        with socket.socket() as unused:
            self._rank = RankWorker(unused)

    def __len__(self):
        return 1

    def each(self, method, arguments):
        return [wire.unpack(self._rank.call(method, *map(wire.pack, arguments[0])))]

    def all(self, method, *arguments):
        return self.each(method, [arguments])

    def send(self, method, arguments):
        self._sent = method, arguments

    def kill(self):
        """There is no process of its own."""

    def receive(self):
        return self.each(*self._sent)


def spread(tree):
    """The same configuration with two ranks for each trained model."""
    if isinstance(tree, dict):
        made = {key: spread(value) for key, value in tree.items()}
        if made.get("type") == "local" and "learning_rate" in made:
            made |= {"type": "fsdp", "workers": 2, "timeout": 120.0}
        return made
    return [spread(each) for each in tree] if isinstance(tree, list) else tree


def configuration(trainer, folder, sections=None):
    """The kit's run of a trainer, in a new folder, on the cluster of the tests."""
    folder.mkdir()
    own = getattr(default_registry().get("trainer", trainer), "conformance", {})
    tree = tiny.config(trainer, folder, own)
    tree = tiny.merged(tree, {"settings": {"cluster": CLUSTER}})
    return tiny.merged(tree, sections or {})
