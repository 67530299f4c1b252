"""Tiny testers and targets for red-teaming, and an algorithm whose arithmetic is one line."""

import os
import signal

import torch

from plugrl import Batch
from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.scorer import as_scorer

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    # Weights so large that probes vary.
    "initializer_range": 0.3,
}
TINY = {"source": {"config": CONFIG, "tokenizer": {"characters": "abcdefgh "}}}
SECTION = {"tester": {"max_new_tokens": 4}, "target": {"max_new_tokens": 4}}
PROMPTS = ["abc", "dd", "ef", "gah", "bed"]


class PolicyGradient(HarnessAlgorithm):
    """Raises the probability of probes that are better than the mean of their batch."""

    def flatten(self, tree):
        return [node for node in tree.nodes() if node.valid]

    def step(self, batch):
        made = Batch.from_trajectories([node.trajectory() for node in batch])
        log_probs, _ = self.system.log_probs(made)
        rewards = torch.tensor([node.reward for node in batch])
        above = rewards - rewards.mean()
        return -(log_probs.sum(1) * above).mean(), {"size": len(batch)}


class Deadly(PolicyGradient):
    """Kills its process at the batch that the environment variable KILL_AT names, from 1 on."""

    batches = 0

    def step(self, batch):
        self.batches += 1
        if self.batches == int(os.environ.get("KILL_AT", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(batch)


#: The same as a section of a configuration.
DEADLY = {
    "custom_harness_algorithm_module_path": __file__,
    "custom_harness_algorithm_class_name": "Deadly",
}


def says_a(dialogue):
    """The share of the probe that is the letter a."""
    return dialogue.probe.count("a") / max(len(dialogue.probe), 1)


def make_system(
    cls=LanguageModelSystem, *, tester=None, train=None, target=None, section=None, **more
):
    """A tester that is trained and a target, and whatever other models ``more`` names."""
    models = {
        "tester": {**TINY, "train": {"type": "local", **(train or {})}, **(tester or {})},
        "target": target or TINY,
        **more,
    }
    return cls.load(models, section or SECTION)


def make_environment(system, scorer=says_a, prompts=PROMPTS, cls=DialogueEnvironment, **section):
    """Dialogues of ``system`` with trees of width 2 and depth 2, unless ``section`` says more."""
    own = {"tree_width": 2, "tree_depth": 2, **SECTION, **section}
    made = scorer if not callable(scorer) else as_scorer(scorer)()
    return cls(own, system=system, prompts=prompts, scorer=made)


def weights(system):
    """A copy of the tester's weights."""
    own = system.models["tester"].train.weights()
    return {name: value.clone() for name, value in own.items()}
