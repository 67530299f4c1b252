"""Red-teaming: how exchanges are rewarded and scored, and what is learned from them."""

import torch

import plugrl


class Late(plugrl.DialogueEnvironment):
    def reward(self, nodes):
        return [{"score": node.score.value * node.turn} for node in nodes]


def vowels(dialogue):
    text = dialogue.said("tester", "").said("target", dialogue.response).response
    return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


class Plain(plugrl.HarnessAlgorithm):
    def flatten(self, tree):
        return [node for node in tree.nodes() if node.valid]

    def step(self, batch):
        rows = plugrl.Batch.from_trajectories([node.trajectory() for node in batch])
        log_probs, _ = self.system.log_probs(rows)
        rewards = torch.tensor([node.reward for node in batch])
        loss = -(log_probs.sum(1) * (rewards - rewards.mean())).mean()
        return loss, {"reward": rewards.mean()}
