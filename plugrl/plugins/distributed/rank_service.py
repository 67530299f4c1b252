"""The part of one rank: what the service ``local`` does, with its parameters spread over ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.plugins.distributed.plan import stays_gathered
from plugrl.plugins.distributed.sharding import LocalShards, Passes, shard
from plugrl.plugins.distributed.weight_link import Bucket, Slot, gather_parts, views
from plugrl.plugins.transformers.merging import Product, merge
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.plugins.transformers.training.masters import MasterWeights
from plugrl.plugins.transformers.training.spread import (
    assign,
    spread_like,
    storage_of,
    whole_tensor,
)

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.inference.services import ModelSpec
    from plugrl.plugins.transformers.training.micro_batches import MicroBatch

Name = TypeVar("Name", str, tuple[str, str])
#: The matrices of a product.
_PARTS = ("down", "up")
#: Numbers of each weight by which ranks compare what they loaded.
_COMPARED = 4096


class RankTrainService(LocalTrainService):
    """Trains this rank's part of a model; every rank calls every method, in the same order.

    Args:
        config: the section of the train service ``fsdp``.
        mesh: of all ranks.
    """

    def __init__(self, config: Any, mesh: DeviceMesh) -> None:
        super().__init__(config)
        self._mesh = mesh
        self._pending: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None

    def load(self, spec: ModelSpec) -> None:
        """Load the model in the memory of the host, then move this rank's part to its device.

        Ranks of a machine do so in turn, and call :meth:`begin_compiling` together then.

        Raises:
            ConfigError: the source or the adapter cannot be used.
        """
        device = spec.device
        self._load(replace(spec, device="cpu"))
        self._device = device

    def begin_compiling(self, spec: ModelSpec) -> None:
        """Compile the layers, where the run is long enough to earn it back."""
        self._begin_compiling(spec)

    def _place(self, spec: ModelSpec) -> None:
        self._dtype = self._model.dtype
        #: Of the weights as they were loaded, to be compared with those of other ranks.
        self.digest = _digest(self._model.state_dict())
        wish = self.config.master_weights
        self._raised = self._dtype != torch.float32 and wish in (True, "auto")
        self._passes = Passes(self._model, self._forward)
        nbytes = self._model.num_parameters() * self._dtype.itemsize
        self._kept = stays_gathered(nbytes, self.config.reshard_after_forward)
        self._parts = shard(self._passes, self._mesh, masters=self._raised, kept=self._kept)

    @contextmanager
    def _within_memory(self, shortage: Callable[[], str]) -> Iterator[None]:
        """The driver says what to lower, and on which rank memory ran out."""
        yield

    def _first_pass(self, batch: Batch) -> None:
        part = self._one_part(batch)
        try:
            with torch.no_grad():
                self._passes(part, ())
            self._reshard()
            self._passes(part, ())[0].sum().backward()
        except Exception:
            self._reshard(in_forward=True)
            raise
        self._reshard()
        self._shards.take_gradients()
        self._optimizer.zero_grad(set_to_none=True)

    def _make_masters(self, trained: Mapping[str, torch.nn.Parameter]) -> MasterWeights | None:
        # Where there are any, they are what is spread.
        return None

    def _optimizer_parameters(
        self, held: Mapping[str, torch.nn.Parameter]
    ) -> list[torch.nn.Parameter]:
        self._names = list(held)
        self._shards = LocalShards(held)
        return list(self._shards.parts.values())

    def _whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        group = self._mesh.get_group("shard")
        if group.size() == 1:
            return norm
        square = norm.to(self._mesh.device_type) ** 2
        dist.all_reduce(square, group=group)
        return square.sqrt()

    @property
    def device(self) -> str:
        """Where this rank computes."""
        return self._device

    @property
    def packs(self) -> bool:
        """Whether rows are computed without padding."""
        return self._forward.packs

    def start_pass(
        self, part: MicroBatch, needs: Sequence[str], rng: torch.Tensor | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor | None]:
        """Go forward; :meth:`end_pass` goes backward.

        Args:
            part: on the CPU.
            needs: what is wanted besides log-probabilities.
            rng: state of the random generator, for dropout; None: there is none.

        Returns:
            Log-probabilities, [B, T], and what is needed, on the CPU, and the generator's state.
        """
        self._set_dropout(True)
        if rng is not None:
            self._seed(rng)
        self._pending = self._passes(self._on_device(part), needs)
        log_probs, extras = self._pending
        found = {name: value.detach().cpu() for name, value in extras.items()}
        return log_probs.detach().cpu(), found, None if rng is None else torch.get_rng_state()

    def end_pass(self, gradients: Mapping[str, torch.Tensor] | None) -> None:
        """Go backward, from the gradients of what :meth:`start_pass` gave.

        Args:
            gradients: of ``log_probs`` and of what was needed, by name; None: there are none on
                any rank.
        """
        assert self._pending is not None
        (log_probs, extras), self._pending = self._pending, None
        if gradients is None:
            self._end_pass()
            return
        made = {"log_probs": log_probs, **extras}
        given = {name: value for name, value in gradients.items() if made[name].requires_grad}
        torch.autograd.backward(
            [made[name] for name in given],
            [value.to(made[name].device) for name, value in given.items()],
        )

    @torch.no_grad()
    def numbers(self, part: MicroBatch, name: str) -> torch.Tensor:
        """Log-probabilities or values of a micro-batch, [B, T], on the CPU, without gradient."""
        self._set_dropout(False)
        part = self._on_device(part)
        log_probs, extras = self._passes(part, () if name == "log_probs" else (name,))
        self._end_pass()
        return {"log_probs": log_probs, **extras}[name].cpu()

    def _on_device(self, part: MicroBatch) -> MicroBatch:
        values = {name: value.to(self._device) for name, value in part.batch.values.items()}
        return replace(
            part,
            batch=replace(part.batch, values=values),
            leaders=part.leaders.to(self._device),
        )

    def _seed(self, rng: torch.Tensor) -> None:
        """Go on with the driver's generator; ranks behind the first one have streams of their own.

        One rank on the CPU draws what the driver would.
        """
        torch.set_rng_state(rng)
        if self._mesh.size() == 1 and self._device == "cpu":
            return
        seed = int(torch.randint(2**62, ()))
        if dist.get_rank() > 0 or self._device != "cpu":
            torch.manual_seed(seed + dist.get_rank())

    def _end_pass(self) -> None:
        """Forget gathered weights, which no backward pass does, unless they stay for the next."""
        if not self._kept:
            self._reshard()

    def _reshard(self, *, in_forward: bool = False) -> None:
        """Forget gathered weights, which an optimizer step makes stale.

        Args:
            in_forward: a forward pass was left midway, in which FSDP keeps those that are to stay.
        """
        for part in self._parts:
            if in_forward:
                part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
            if in_forward:
                stays = self._kept or part is self._passes
                part.set_reshard_after_forward(not stays, recurse=False)

    def apply_gradient(self, adam: AdamParams) -> dict[str, float]:
        """An optimizer step of this rank's part, clipped by the norm of the whole gradient."""
        self._reshard()
        self._shards.take_gradients()
        return super().apply_gradient(adam)

    def fix_value_bias(self) -> None:
        """Keep the bias of the value head at 0."""
        self._shards.parts["value_head.bias"].requires_grad_(False)

    # ---------------------------------------------------------------------- weights

    def weights(self) -> dict[str, torch.Tensor]:
        """The whole weights, on the CPU of the first rank; empty on others."""
        base = self.base_weights()
        return base if self._adapter is None else merge(base, self.products())

    def base_weights(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """The same without the adapter; of these names, or all."""
        held = self._held()
        wanted = held if names is None else {name: held[name] for name in names}
        return self.gather(wanted, self._dtype)

    def weight_slots(self) -> list[Slot]:
        """The weights without the adapter, in order, each with all of its names."""
        names: dict[int, list[str]] = {}
        held = self._held()
        for name, value in held.items():
            names.setdefault(storage_of(value), []).append(name)
        return [
            Slot(
                tuple(own),
                self._dtype if held[own[0]].is_floating_point() else held[own[0]].dtype,
                tuple(held[own[0]].shape),
            )
            for own in names.values()
        ]

    @torch.no_grad()
    def fill(self, bucket: Bucket, flat: torch.Tensor | None) -> None:
        """Gather the weights of a bucket; all ranks do so.

        Args:
            bucket: of the weights without the adapter.
            flat: gets their bytes; None: nobody wants them of this rank.
        """
        held = self._held()
        values = [held[slot.names[0]] for slot in bucket]
        spread = {
            slot: value.to_local()
            for slot, value in zip(bucket, values, strict=True)
            if isinstance(value, DTensor)
        }
        # All weights by one collective, since a model has hundreds.
        parts = gather_parts(spread, self._mesh.get_group("shard"), self._device)
        if flat is None:
            return
        places, sources = [], []
        for value, (slot, place) in zip(values, views(bucket, flat), strict=True):
            own = parts.get(slot, [value])
            places += place.split([len(part) for part in own]) if slot in parts else [place]
            sources += own
        torch._foreach_copy_(places, sources)

    def _held(self) -> Mapping[str, torch.Tensor]:
        return super().weights() if self._adapter is None else self._adapter.base()

    def products(self) -> dict[str, Product]:
        """What the adapter adds to the weights, on the CPU of the first rank; empty on others."""
        assert self._adapter is not None
        found = self._adapter.products()
        parts = {(name, kind): getattr(own, kind) for name, own in found.items() for kind in _PARTS}
        whole = self.gather(parts, self._dtype)
        return {
            name: replace(own, **{kind: whole[name, kind] for kind in _PARTS})
            for name, own in (found.items() if whole else ())
        }

    @torch.no_grad()
    def gather(
        self, spread: Mapping[Name, torch.Tensor], dtype: torch.dtype | None = None
    ) -> dict[Name, torch.Tensor]:
        """Whole tensors on the CPU of the first rank, one after the other; empty on others.

        Args:
            spread: by name, the same names on all ranks.
            dtype: that floating-point tensors get; None: their own.
        """
        made: dict[int, torch.Tensor] = {}
        found = {}
        for name, value in spread.items():
            place = storage_of(value)
            if place not in made:
                cast_to = dtype if dtype is not None and value.is_floating_point() else value.dtype
                gathered = whole_tensor(value.detach().to(cast_to))
                made[place] = gathered.cpu().clone() if dist.get_rank() == 0 else gathered[:0]
            found[name] = made[place]
        return found if dist.get_rank() == 0 else {}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights by whole ones, which every rank is given."""
        self._reshard()
        held = self._model.state_dict() if self._adapter is None else self._adapter.base()
        super().load_weights(
            {n: spread_like(held[n], v) if n in held else v for n, v in weights.items()}
        )

    # ------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """What the service ``local`` saves, with tensors that are spread over the ranks."""
        self._reshard()
        state = super().state_dict()
        if self._raised:
            trained = self._model.named_parameters()
            state["masters"] = {n: p.detach() for n, p in trained if p.requires_grad}
        state["optimizer"] = {
            number: {
                name: self._shards.spread(number, value) if value.dim() else value
                for name, value in moments.items()
            }
            for number, moments in state["optimizer"].items()
        }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back a state of whole tensors, or one that is spread as this rank's is."""
        self._reshard()
        head = self._forward.value_head
        if head is not None and "value_head" in state:
            held = head.state_dict()
            own = {n: spread_like(held[n], value) for n, value in state["value_head"].items()}
            state = {**state, "value_head": own}
        moments = {
            int(number): {name: self._moment(int(number), value) for name, value in each.items()}
            for number, each in state["optimizer"].items()
        }
        super().load_state_dict({**state, "optimizer": moments})
        if self._raised and "masters" in state:
            parameters = dict(self._model.named_parameters())
            for name, value in state["masters"].items():
                assign(parameters[name], value)

    def parameter(self, number: int) -> DTensor:
        """A trained parameter, as the optimizer counts them."""
        return self._shards.whole(number)

    def _moment(self, number: int, value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, DTensor):
            return value.to_local()
        return self._shards.part(number, value) if value.dim() else value

    # ----------------------------------------------------------------------- export

    def export(self, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False) -> None:
        """Write weights and tokenizer; the first rank writes."""
        if adapter:
            self.save_adapter(folder)
            return
        weights = self.weights()
        if weights:
            self._form.save(self._model, weights, tokenizer, folder)

    def export_scorer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a sequence classifier of one label; the first rank writes."""
        from plugrl.plugins.transformers.classifier import write_classifier

        if self._forward.value_head is None:
            self._no_value_head()
        weights = self.weights()
        numbers = self.gather(self._forward.value_head.state_dict())
        if weights:
            head = torch.nn.Linear(numbers["weight"].shape[1], 1)
            head.load_state_dict(numbers)
            write_classifier(self._model, self._form, weights, head, tokenizer, folder)

    def save_adapter(self, folder: str | Path) -> None:
        """Write the adapter as ``peft`` reads it; the first rank writes."""
        if self._adapter is None:
            super().save_adapter(folder)
            return
        weights = self.gather(self._adapter.state_dict(), self._dtype)
        if weights:
            self._adapter.save(folder, weights)


def _digest(weights: Mapping[str, torch.Tensor]) -> int:
    """A number that differs for other weights: of a sample of each."""
    found = 0
    for name, weight in weights.items():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // _COMPARED)].float().cpu().numpy()
        found = zlib.crc32(sample.tobytes(), zlib.crc32(name.encode(), found))
    return found
