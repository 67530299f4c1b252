"""Log-probabilities of Llama-shaped models on the CPU, made to be differentiated fast.

With sequences of a few dozen tokens, a small model spends most of a training pass between its
matrix products: in many small passes over memory and in attention kernels made for long rows. Here
a layer is two functions whose backward passes are written by hand. Models are taken only after they
gave equal results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from plugrl.plugins.transformers.lean_attention import Attention, Piece, Plan
from plugrl.plugins.transformers.lean_layers import Gates, Gradients, Shape, TokenLogProbs
from plugrl.plugins.transformers.lean_models import can_be_lean, is_small
from plugrl.plugins.transformers.packing import Packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Scores of all pairs of tokens are kept, so that longer rows belong to the kernels of torch.
_LONGEST = 128
#: Plans that are kept: those of a batch that is trained and of the probe after it.
_PLANS = 4
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
        # The numbers of a head, those that turn together side by side.
        shape = self._shape
        pairs = torch.arange(shape.width).view(2, -1).t().flatten()
        rows = torch.arange(shape.heads * shape.width).view(shape.heads, shape.width)
        rows[: shape.turning] = rows[: shape.turning, pairs]
        self._order = rows.flatten()
        # The weights of a query's numbers, then those of a key's, for each head.
        kinds = torch.tensor([0] * shape.queries + [1] * shape.keys)
        self._norm_order = (kinds[:, None] * shape.width + pairs).flatten()
        self._known: dict[Any, tuple[Plan, Plan, Tensor]] = {}
        self._scale = float(attention.scaling)
        self._table = torch.empty(0)

    @classmethod
    def of(cls, model: PreTrainedModel) -> LeanTraining | None:
        """The same model, to be run in this way; None when it cannot or is not worth it."""
        if (
            model.device.type != "cpu"
            or not can_be_lean(model)
            or not is_small(model)
            or not all(weight.dtype in _DTYPES for weight in model.parameters())
            or not all(type(part) is torch.nn.Linear for part in _projections(model))
            or model.get_output_embeddings().bias is not None
        ):
            return None
        lean = cls(model)
        return lean if lean._agrees(model) else None

    def takes(self, width: int) -> bool:
        """Whether rows of so many tokens are computed here."""
        return width <= _LONGEST

    def log_probs(self, packing: Packing, targets: Tensor, temperature: float) -> Tensor:
        """Log-probabilities of ``targets`` ([P]), each predicted at its place of ``packing``."""
        whole, last, places = self._plans(packing)
        # The first layer's projections depend on the token alone.
        tokens, source = packing.tokens.flatten().unique(return_inverse=True)
        layers = self._body.layers
        plans = [*[whole] * (len(layers) - 1), last]
        kept = source if plans[0].kept is None else source[plans[0].kept]
        plans[0] = replace(plans[0], source=source, kept=kept)
        # As in the model itself, the embedding of padding gets no gradient.
        table = self._body.embed_tokens
        states = torch.nn.functional.embedding(tokens, table.weight, table.padding_idx)
        for layer, plan in zip(layers, plans, strict=True):
            states = self._layer(layer, states, plan)
        norm = self._body.norm.weight
        joined = Join.apply(
            None, norm if temperature == 1 else norm / temperature, self._head.weight
        )
        chosen: Tensor = TokenLogProbs.apply(self._shape.eps, places, targets, states, joined)
        return chosen

    def _plans(self, packing: Packing) -> tuple[Plan, Plan, Tensor]:
        """The plans of all layers but the last and of the last, and the places behind that one.

        The newest are kept: batches that differ in their tokens alone have the same.
        """
        rows, own = packing.layout()
        where = rows, own, packing.positions.flatten(), packing.places
        key = torch.is_grad_enabled(), rows.shape, *(part.numpy().tobytes() for part in where)
        plans = self._known.pop(key, None) or self._planned(*where)
        self._known[key] = plans
        if len(self._known) > _PLANS:
            del self._known[next(iter(self._known))]
        return plans

    def _planned(
        self, rows: Tensor, own: Tensor, positions: Tensor, places: Tensor
    ) -> tuple[Plan, Plan, Tensor]:
        whole = self._plan(rows, own, self._turns(positions))
        asked = torch.zeros(len(own), dtype=torch.bool)
        asked[places] = True
        if bool(asked.all()):
            return whole, whole, places
        return whole, self._last(whole, asked), (asked.cumsum(0) - 1)[places]

    def _layer(self, layer: Any, states: Tensor, plan: Plan) -> Tensor:
        attention, mlp, shape = layer.self_attn, layer.mlp, self._shape
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        norm = layer.input_layernorm.weight
        joined = Join.apply(self._order, norm, *[part.weight for part in three])
        bias = head_norms = None
        if attention.q_proj.bias is not None:
            bias = Join.apply(self._order, None, *[part.bias for part in three])
        if hasattr(attention, "q_norm"):
            both = torch.cat([attention.q_norm.weight, attention.k_norm.weight])
            head_norms = both.index_select(0, self._norm_order).view(-1, shape.width)
        out = attention.o_proj.weight
        states = Attention.apply(shape, plan, states, joined, bias, head_norms, out)
        norm = layer.post_attention_layernorm.weight
        gates = Join.apply(None, norm, mlp.gate_proj.weight, mlp.up_proj.weight)
        result: Tensor = Gates.apply(shape.eps, states, gates, mlp.down_proj.weight)
        return result

    @torch.no_grad()
    def _turns(self, positions: Tensor) -> Tensor:
        """The turns of each token's queries and keys, complex, [N, queries + keys, D / 2]."""
        count, shape = int(positions.max()) + 1, self._shape
        if count > len(self._table):
            every = torch.arange(max(count, _LONGEST))[None]
            cos, sin = self._body.rotary_emb(self._body.norm.weight, every)
            half = shape.width // 2
            turn = torch.complex(cos[0, :, :half], sin[0, :, :half])
            self._table = turn[:, None].repeat(1, shape.turning, 1)
            self._table[:, : shape.queries] *= self._scale
        return self._table.index_select(0, positions)

    def _plan(self, rows: Tensor, own: Tensor, turns: Tensor) -> Plan:
        """The plan of layers behind which all tokens go on."""
        shape, (count, width) = self._shape, rows.shape
        split = [shape.queries, shape.keys, shape.keys]
        group = shape.queries // shape.keys
        pieces = Piece.of(count, width, group, self._body.norm.weight)
        cuts = [piece.last - piece.first for piece in pieces]
        place = rows[:, None] * shape.heads + torch.arange(shape.heads)[:, None]
        queries, *others = place.split(split, 1)
        queries = queries.view(count, shape.keys, group, width).transpose(2, 3)
        gather = [part.flatten() for part in (*queries.split(cuts, 2), *others)]
        # The numbers that places of heads have in what is gathered, [B, heads, T].
        numbers = torch.arange(place.numel()).split([n * count * width for n in split])
        parts = numbers[0].split([count * shape.queries * cut for cut in cuts])
        queries = torch.cat(
            [part.view(count, shape.keys, -1, group) for part in parts], 2
        ).transpose(2, 3)
        number = [part.reshape(count, -1, width) for part in (queries, *numbers[1:])]
        by_place = torch.cat(number, 1).transpose(1, 2).reshape(count * width, -1)
        shared = torch.ones(count * width, dtype=torch.bool)
        shared[own] = False
        back = by_place[own]
        return Plan(
            gather=torch.cat(gather),
            back=back[:, : shape.queries].flatten(),
            spread=self._spread(back[:, : shape.queries].flatten(), count * width),
            own=back.flatten(),
            others=by_place[shared, shape.queries :].flatten(),
            source=None,
            kept=None,
            turns=turns,
            turns_back=turns.conj().resolve_conj() if torch.is_grad_enabled() else None,
            pieces=pieces,
        )

    def _last(self, plan: Plan, asked: Tensor) -> Plan:
        """The same for the last layer, behind which only ``asked`` tokens, [N], go on."""
        kept = asked.nonzero().flatten()
        back = plan.back.view(-1, self._shape.queries)[kept].flatten()
        spread = self._spread(back, len(plan.spread) // self._shape.queries)
        return replace(plan, back=back, spread=spread, kept=kept)

    def _spread(self, back: Tensor, places: int) -> Tensor:
        spread = torch.full((places * self._shape.queries,), len(back))
        spread[back] = torch.arange(len(back))
        return spread

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


class Join(Function):
    """Parameters below each other, their rows in another order, each row times ``norm``.

    ``order`` and ``norm`` may be None.
    """

    @staticmethod
    def forward(ctx: Any, order: Tensor | None, norm: Tensor | None, *parts: Tensor) -> Tensor:
        """The joined parameters."""
        ctx.sizes = [len(part) for part in parts]
        ctx.save_for_backward(order, norm, *parts)
        if norm is None:
            joined = torch.cat(parts)
        else:
            joined = norm.new_empty(sum(ctx.sizes), len(norm))
            for part, place in zip(parts, joined.split(ctx.sizes), strict=True):
                torch.mul(part, norm, out=place)
        return joined if order is None else joined.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        order, norm, *parts = ctx.saved_tensors
        if order is not None:
            gradient = torch.empty_like(gradient).index_copy_(0, order, gradient)
        if norm is None:
            return None, None, *gradient.split(ctx.sizes)
        along = torch.empty_like(gradient)
        for part, place, own in zip(
            parts, along.split(ctx.sizes), gradient.split(ctx.sizes), strict=True
        ):
            torch.mul(part, own, out=place)
        return None, along.sum(0), *(gradient * norm).split(ctx.sizes)


def _projections(model: PreTrainedModel) -> list[Any]:
    body: Any = model.base_model
    found = [model.get_output_embeddings()]
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        found += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        found += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return found
