"""Log-probabilities of Llama-shaped models on the CPU, made to be differentiated fast.

With sequences of a few dozen tokens, a small model spends most of a training pass between its
matrix products: in many small passes over memory and in attention kernels made for long rows. Here
a layer is two functions whose backward passes are written by hand. Models are taken only after they
gave equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plugrl.plugins.transformers.lean import can_be_lean
from plugrl.plugins.transformers.lean_layers import Attention, Gates, Plan, Shape, TokenLogProbs
from plugrl.plugins.transformers.packing import Packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Scores of all pairs of tokens are kept, so that longer rows belong to the kernels of torch.
_LONGEST = 128
#: Larger models spend their time in matrix products, and their joined matrices would take memory.
_MOST_PARAMETERS = 200_000_000
_DTYPES = (torch.float32, torch.float64)


class LeanTraining:
    """The layers and the head of a model that :meth:`of` found to be of the shape.

    Args:
        model: a causal language model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        body: Any = model.base_model
        self._body = body
        self._head: Any = model.get_output_embeddings()
        attention = body.layers[0].self_attn
        self._shape = Shape(
            int(config.num_attention_heads),
            int(config.num_key_value_heads),
            int(attention.head_dim),
            float(config.rms_norm_eps),
        )
        self._scale = float(attention.scaling)
        self._window = int(getattr(config, "sliding_window", None) or _LONGEST)

    @classmethod
    def of(cls, model: PreTrainedModel) -> LeanTraining | None:
        """The same model, to be run in this way; None when it cannot or is not worth it."""
        if (
            model.device.type != "cpu"
            or not can_be_lean(model)
            or model.num_parameters() > _MOST_PARAMETERS
            or not all(weight.dtype in _DTYPES for weight in model.parameters())
            or not all(type(part) is torch.nn.Linear for part in _projections(model))
            or model.get_output_embeddings().bias is not None
        ):
            return None
        lean = cls(model)
        return lean if lean._agrees(model) else None

    def takes(self, width: int) -> bool:
        """Whether rows of so many tokens are computed here."""
        return width <= min(_LONGEST, self._window)

    def log_probs(self, packing: Packing, targets: Tensor, temperature: float) -> Tensor:
        """Log-probabilities of ``targets`` ([P]), each predicted at its place of ``packing``."""
        rows, own = packing.layout()
        positions, places = packing.positions.flatten(), packing.places
        asked = torch.zeros(len(own), dtype=torch.bool)
        asked[places] = True
        turns = self._turns(positions)
        whole = self._plan(rows, own, turns, None)
        last = whole if bool(asked.all()) else self._plan(rows, own, turns, asked)
        if last.kept is not None:
            places = (asked.cumsum(0) - 1)[places]
        tokens = packing.tokens.flatten()
        # As in the model itself, the embedding of padding gets no gradient.
        table = self._body.embed_tokens
        states = torch.nn.functional.embedding(tokens, table.weight, table.padding_idx)
        layers = self._body.layers
        for number, layer in enumerate(layers):
            plan = last if number == len(layers) - 1 else whole
            states = self._layer(layer, states, plan)
        joined = self._head.weight * (self._body.norm.weight / temperature)
        chosen: Tensor = TokenLogProbs.apply(self._shape.eps, places, targets, states, joined)
        return chosen

    def _layer(self, layer: Any, states: Tensor, plan: Plan) -> Tensor:
        attention, mlp = layer.self_attn, layer.mlp
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        joined = self._joined([part.weight for part in three]) * layer.input_layernorm.weight
        bias = head_norms = None
        if attention.q_proj.bias is not None:
            bias = self._joined([part.bias for part in three])
        if hasattr(attention, "q_norm"):
            shape = self._shape
            both = [
                attention.q_norm.weight.expand(shape.queries, -1),
                attention.k_norm.weight.expand(shape.keys, -1),
            ]
            head_norms = self._paired(torch.cat(both)).view(shape.turning, -1)
        states = Attention.apply(
            self._shape, plan, states, joined, bias, head_norms, attention.o_proj.weight
        )
        gates = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        gates = gates * layer.post_attention_layernorm.weight
        result: Tensor = Gates.apply(self._shape.eps, states, gates, mlp.down_proj.weight)
        return result

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Queries, keys and values as one tensor, what turns in pairs."""
        return torch.cat([self._paired(torch.cat(parts[:2])), parts[2]])

    def _paired(self, heads: Tensor) -> Tensor:
        """Bring the two numbers that turn together side by side in each head of the first dim."""
        halves = heads.view(self._shape.turning, 2, self._shape.width // 2, -1)
        return halves.transpose(1, 2).reshape(-1, *heads.shape[1:])

    @torch.no_grad()
    def _turns(self, positions: Tensor) -> Tensor:
        """The turns of each token's queries and keys, complex, [N, queries + keys, D / 2]."""
        every = torch.arange(int(positions.max()) + 1)[None]
        half = self._shape.width // 2
        cos, sin = self._body.rotary_emb(self._body.norm.weight, every)
        turn = torch.complex(cos[0, :, :half], sin[0, :, :half])
        table = turn[:, None].repeat(1, self._shape.turning, 1)
        table[:, : self._shape.queries] *= self._scale
        return table.index_select(0, positions)

    def _plan(self, rows: Tensor, own: Tensor, turns: Tensor, asked: Tensor | None) -> Plan:
        """The plan of all layers, or of the last one, behind which only ``asked`` tokens go on."""
        shape, (count, width) = self._shape, rows.shape
        queries, heads = torch.arange(shape.queries), torch.arange(shape.heads)
        place = rows[:, None] * shape.heads + heads[:, None]
        split = place.split([shape.queries, shape.keys, shape.keys], 1)
        kept = None if asked is None else asked.nonzero().flatten()
        where = own if kept is None else own[kept]
        back = (where // width * shape.queries)[:, None] + queries
        back = (back * width + (where % width)[:, None]).flatten()
        spread = torch.full((count * shape.queries * width,), len(where) * shape.queries)
        spread[back] = torch.arange(len(back))
        ones = torch.full((width, width), -torch.inf, dtype=self._body.norm.weight.dtype)
        return Plan(
            gather=torch.cat([part.flatten() for part in split]),
            back=back,
            spread=spread,
            kept=kept,
            turns=turns,
            mask=ones.triu(1).repeat(shape.queries // shape.keys, 1),
        )

    @torch.no_grad()
    def _agrees(self, model: PreTrainedModel) -> bool:
        """Whether both ways give the same log-probabilities for two rows."""
        most = int(model.config.vocab_size) - 1
        tokens = torch.tensor([[0, most, most // 2, 1], [most // 3, most, 0, most // 4]])
        expected = model(tokens, use_cache=False).logits[:, :-1].log_softmax(-1)
        expected = expected.gather(-1, tokens[:, 1:, None])[..., 0]
        places = torch.arange(8).view(2, 4)[:, :-1].flatten()
        positions = torch.arange(4).expand(2, -1)
        packing = Packing(tokens, positions, None, places)
        try:
            got = self.log_probs(packing, tokens[:, 1:].flatten(), 1.0)
        except (AttributeError, RuntimeError):
            # A model's code may differ from what its kind has.
            return False
        return torch.allclose(got, expected.flatten(), rtol=1e-4, atol=1e-4)


def _projections(model: PreTrainedModel) -> list[Any]:
    body: Any = model.base_model
    found = [model.get_output_embeddings()]
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        found += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        found += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return found
