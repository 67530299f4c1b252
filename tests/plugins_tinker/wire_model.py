"""What the server of the wire format computes with: one small model, and adapters of it.

Sampling, log-probabilities, losses and the optimizer are written here in torch alone, so that they
are a second opinion on the numbers of plugrl.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from torch.func import functional_call
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

#: The parts of a model that each switch of ``LoraConfig`` covers.
PARTS = {
    "train_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "train_mlp": ("gate_proj", "up_proj", "down_proj"),
    "train_unembed": ("lm_head",),
}
SCALE = 32.0

#: What each loss reads, apart from the targets, and its options where none are given.
LOSSES = {
    "cross_entropy": ({"weights"}, {}),
    "importance_sampling": ({"logprobs", "advantages"}, {}),
    "ppo": ({"logprobs", "advantages"}, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": ({"logprobs", "advantages"}, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "dro": ({"logprobs", "advantages"}, {"beta": 0.05}),
}


class UserError(Exception):
    """A request that cannot be carried out, and whose sender is to blame."""


def loss_of(name: str, options: dict, logp: torch.Tensor, inputs: dict) -> torch.Tensor:
    """A loss of the public documents, summed over the targets."""
    if name == "cross_entropy":
        return -(inputs["weights"] * logp).sum()
    advantages, change = inputs["advantages"], logp - inputs["logprobs"]
    ratio = change.exp()
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "dro":
        return -(advantages * logp - options["beta"] / 2 * change.square()).sum()
    clipped = ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])
    if name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages).sum()
    return -(clipped.detach() * advantages * logp).sum()


class Adapter:
    """Matrices of low rank that are added to some of a model's, and their optimizer."""

    def __init__(self, base: Base, lora: dict) -> None:
        self.rank = lora["rank"]
        covered = [part for switch, parts in PARTS.items() if lora[switch] for part in parts]
        generator = torch.Generator().manual_seed(lora.get("seed") or 0)
        self.pairs = {}
        for name, weight in base.matrices.items():
            if name.split(".")[-2] in covered:
                down = torch.randn(self.rank, weight.shape[1], generator=generator)
                up = torch.zeros(weight.shape[0], self.rank)
                self.pairs[name] = (down / weight.shape[1] ** 0.5, up)
        self.begin_anew()

    def begin_anew(self) -> None:
        """A new optimizer, and no gradient."""
        self.parameters = [
            matrix.requires_grad_() for pair in self.pairs.values() for matrix in pair
        ]
        self.optimizer = torch.optim.AdamW(self.parameters)

    def saved(self) -> dict:
        """Its matrices and its optimizer's moments."""
        pairs = {name: tuple(m.detach().clone() for m in pair) for name, pair in self.pairs.items()}
        moments = copy.deepcopy(self.optimizer.state_dict())
        return {"rank": self.rank, "pairs": pairs, "moments": moments}

    def load(self, saved: dict, *, optimizer: bool) -> None:
        """Take back what was saved; without ``optimizer`` its moments begin anew."""
        if saved["rank"] != self.rank:
            raise UserError(f"the saved rank {saved['rank']} is not {self.rank}")
        self.pairs = {n: tuple(m.clone() for m in pair) for n, pair in saved["pairs"].items()}
        self.begin_anew()
        if optimizer:
            self.optimizer.load_state_dict(copy.deepcopy(saved["moments"]))

    def step(self, adam: dict) -> float:
        """One step of AdamW; gives the norm of the gradient before it was clipped."""
        for group in self.optimizer.param_groups:
            group.update(
                lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"],
                weight_decay=adam["weight_decay"],
            )  # fmt: skip
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters, adam["grad_clip_norm"] or float("inf")
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()


class Base:
    """A model of a folder that nobody changes."""

    def __init__(self, folder: Path) -> None:
        self.network = AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
        self.context = self.network.config.max_position_embeddings
        self.matrices = {
            f"{name}.weight": module.weight
            for name, module in self.network.named_modules()
            if isinstance(module, torch.nn.Linear)
        }

    def log_probs(self, rows: list[list[int]], pairs: dict) -> torch.Tensor:
        """Log-probabilities of every token behind every position; rows may differ in length."""
        longest = max(map(len, rows))
        # Attention is causal: what follows the end of a row changes nothing in it.
        tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        changed = {
            name: self.matrices[name] + SCALE / down.shape[0] * up @ down
            for name, (down, up) in pairs.items()
        }
        output = functional_call(
            self.network, changed, (tokens,), {"use_cache": False}, tie_weights=False
        )
        return log_softmax(output.logits.float(), -1)

    @torch.no_grad()
    def scores(self, tokens: list[int], pairs: dict) -> list[float | None]:
        """The log-probability of each token; the first has none."""
        table = self.log_probs([tokens], pairs)[0]
        return [None, *(table[i, token].item() for i, token in enumerate(tokens[1:]))]

    @torch.no_grad()
    def sample(self, prompt: list[int], count: int, asked: dict, pairs: dict) -> list[dict]:
        """Answers to a prompt; the seed and the number of an answer decide about it."""
        stops = set(asked["stop"] or ())
        most = min(asked["max_tokens"], self.context - len(prompt))
        draws = [
            np.random.default_rng((asked["seed"] or 0, number)).random(most)
            for number in range(count)
        ]
        rows = [list(prompt) for _ in range(count)]
        found = [{"tokens": [], "logprobs": [], "stop_reason": "length"} for _ in range(count)]
        for place in range(most):
            open_ones = [i for i in range(count) if found[i]["stop_reason"] == "length"]
            if not open_ones:
                break
            table = self.log_probs([rows[i] for i in open_ones], pairs)[:, -1]
            for i, logp in zip(open_ones, table, strict=True):
                token = drawn(logp, asked, draws[i][place])
                rows[i].append(token)
                found[i]["tokens"].append(token)
                found[i]["logprobs"].append(logp[token].item())
                if token in stops:
                    found[i]["stop_reason"] = "stop"
        return found

    def passed(self, datums: list[dict], loss: str, options: dict, adapter: Adapter, *, back: bool):
        """Log-probabilities of the targets and the loss; ``back``: with its gradient."""
        if loss not in LOSSES:
            raise UserError(f"there is no loss {loss}")
        wanted, defaults = LOSSES[loss]
        if unknown := set(options) - set(defaults):
            raise UserError(f"{loss} has no {sorted(unknown)}")
        with torch.set_grad_enabled(back):
            table = self.log_probs([d["tokens"] for d in datums], adapter.pairs)
            total, rows = torch.zeros(()), []
            for datum, logp in zip(datums, table, strict=True):
                given = dict(datum["inputs"])
                targets = given.pop("target_tokens")
                if set(given) != wanted:
                    raise UserError(f"{loss} reads {sorted(wanted)}, not {sorted(given)}")
                if {len(v) for v in (targets, *given.values())} != {len(datum["tokens"])}:
                    raise UserError("inputs differ in length")
                own = logp[range(len(targets)), targets]
                inputs = {name: torch.tensor(values) for name, values in given.items()}
                total = total + loss_of(loss, {**defaults, **options}, own, inputs)
                rows.append(own.tolist())
        if back:
            total.backward()
        return rows, total.item()


def drawn(logp: torch.Tensor, asked: dict, draw: float) -> int:
    """The token that a number of [0, 1) stands for, among those that are allowed."""
    if asked["temperature"] == 0:
        return int(logp.argmax())
    values, order = (logp / asked["temperature"]).softmax(-1).sort(descending=True)
    kept = torch.ones_like(values, dtype=torch.bool)
    if asked["top_k"] > 0:
        kept[asked["top_k"] :] = False
    kept &= values.cumsum(-1) - values < asked["top_p"]
    edges = (values * kept).cumsum(-1)
    place = int(torch.searchsorted(edges, draw * edges[-1].item(), right=True))
    return int(order[min(place, int(kept.sum()) - 1)])
