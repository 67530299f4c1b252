"""The ``fsdp`` train service: one model on several devices, its parameters spread over them.

The driver plans the passes and computes the loss; ranks go forward and backward and hold weights,
gradients and optimizer. So losses, advantages and their terms run where the rest of the run does,
and a rank needs no code of a user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.plan import MICRO_BATCH_ROWS
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.run.checkpoints.shards import SavedShards, ShardedState
from plugrl.core.run.process import determinism
from plugrl.core.text.batch import Batch
from plugrl.core.text.endpoint.clients.callables import DaemonThreads
from plugrl.core.text.inference.services import (
    AdapterWeights,
    InferenceService,
    ModelSpec,
    TrainService,
)
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.learn.step import accumulate_gradient
from plugrl.plugins.distributed.passes import Part, Plan, gradients_of
from plugrl.plugins.distributed.plan import device_rows
from plugrl.plugins.distributed.preflight import worker_findings
from plugrl.plugins.distributed.ranks import Ranks, give_back, is_idle, take_ranks
from plugrl.plugins.distributed.weight_link import Bucket, Link, Slot, end, fill_buckets, size_of
from plugrl.plugins.ray.engines import RayInferenceService
from plugrl.plugins.transformers.merging import Product, merge
from plugrl.plugins.transformers.model_shape import ModelShape
from plugrl.plugins.transformers.train_service import LocalTrainConfig, LocalTrainService
from plugrl.plugins.transformers.training.memory import enough_tokens

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView
    from plugrl.plugins.ray.replicas import Replicas

#: Bytes of weights that are on their way from the ranks at the same time.
_BUCKET = 2**30


@dataclass
class FsdpTrainConfig(LocalTrainConfig):
    """Options of the train service ``fsdp``: those of ``local``, for each rank, and its ranks."""

    workers: int = described(
        1, "ranks, each with a GPU of its own, or with a CPU", at_least=1, at_most=4096
    )
    shard: Literal["full", "hybrid", "none"] = described(
        "full",
        "over which ranks weights, gradients and optimizer are split: all; those of a "
        "machine, with copies on other machines; none, with a copy on each",
    )
    reshard_after_forward: bool | Literal["auto"] = described(
        "auto",
        "forget whole weights of a layer after its forward pass, and gather them again for its "
        "backward pass; false: all stay until the optimizer step; auto: false where they take 8 "
        "GiB or less",
    )
    gpus: float = described(
        1.0,
        "the share of its GPU that each rank takes; engines on the cluster may take the rest. What "
        "starts first, the engines, has to take more than half, so that no two share a GPU",
        above=0,
        at_most=1,
    )
    transfer: Literal["auto", "broadcast", "store"] = described(
        "auto",
        "how whole weights reach engines on the cluster. auto: within a GPU, or on CPUs within a "
        "machine, and to others by a broadcast; broadcast: to all; store: through the driver and "
        "Ray's object store",
    )
    timeout: float = described(
        1800.0,
        "seconds that any call of a rank may take; then the run ends and says which rank it was",
        above=0,
        at_most=1e6,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "adamw":
            raise ConfigError(f"optimizer {self.optimizer} is for the service local; take adamw")


class FsdpTrainService(TrainService):
    """Trains a ``transformers`` model on several ranks, as ``local`` does on one device."""

    Config: ClassVar[type] = FsdpTrainConfig
    # By the ranks, from the cache that this process fills.
    loads_weights: ClassVar[bool] = True
    _ranks: Ranks | None = None
    _closed = False
    #: Whether the ranks load the model, which nobody has waited for.
    _begun = False
    _places: Sequence[Mapping[str, Any]] = ()
    _base: dict[str, torch.Tensor] | None
    #: To the replicas that were looked at last, and how often weights went over it.
    _link: Link | None = None
    _linked: tuple[Replicas, Sequence[int]] | None = None
    _transfers = 0

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """What the service ``local`` looks for, and more workers than there can be."""
        yield from LocalTrainService.preflight(check)
        yield from worker_findings(check)

    @classmethod
    def device_plan(
        cls, model: ConfigView, devices: int, machines: int
    ) -> Sequence[tuple[str, str]]:
        """What each of ``devices`` holds and receives."""
        return device_rows(model, devices, machines)

    def begin_load(self, spec: ModelSpec) -> None:
        """Start the ranks, which begin to load their parts of the model; wait for their places.

        Raises:
            ConfigError: the ranks of machines are not as many, and have to be.
            RunError: ranks do not fit in the cluster.
        """
        device = "cuda" if spec.device.startswith("cuda") else "cpu"
        self._device, wanted = device, self.config
        self._ranks = ranks = take_ranks(wanted.workers, device, wanted.timeout, wanted.gpus)
        sent = replace(spec, device=device)
        threads = torch.get_num_threads()
        if self.config.shard == "hybrid" and len({turns for _, turns in ranks.turns}) > 1:
            ranks.kill()
            raise ConfigError(
                f"models.{spec.name}.train.shard: hybrid needs as many ranks on each machine; "
                f"{self.config.workers} workers are placed unevenly"
            )
        exact = determinism.is_on()
        given = [
            (self.config, sent, turn, turns, max(1, threads // turns), exact)
            for turn, turns in ranks.turns
        ]
        ranks.send("load", given)
        self._begun = True

    def load(self, spec: ModelSpec) -> None:
        """Start the ranks if they were not, and wait until each has its part of the model.

        Raises:
            ConfigError: the source or the adapter cannot be used.
            RunError: ranks do not fit in the cluster, or have other weights than the first.
        """
        if not self._begun:
            self.begin_load(spec)
        ranks = self.ranks
        facts = ranks.receive()
        self._begun = False
        self._packs = facts[0]["packs"]
        self._tokens = self._tokens_of_a_pass(spec, compiled=facts[0]["compiled"])
        self._places = [
            {"name": f"rank {rank} of model {spec.name!r} on node {place['node']}", **place}
            for rank, place in enumerate(ranks.places)
        ]
        self._check_equal([each["digest"] for each in facts])
        self._adapts, self._base, self._link = spec.adapter is not None, None, None
        self._slots: Sequence[Slot] | None = None
        self._draws = spec.adapter is not None and spec.adapter.dropout > 0
        self.optimizer_steps = 0

    def _tokens_of_a_pass(self, spec: ModelSpec, *, compiled: bool) -> int | None:
        """Of each rank; None: rows are counted."""
        chosen: int | None = self.config.micro_batch_tokens
        if chosen or self.config.micro_batch_size or self._device == "cpu":
            return chosen
        shape = ModelShape.of_sections(spec.source, spec.adapter, self.config)
        return None if shape is None else enough_tokens(shape, self.config, compiled=compiled)

    def _check_equal(self, digests: Sequence[int]) -> None:
        other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if other:
            raise RunError(
                f"rank {other[0]} loaded other weights than rank 0; let the machines have one copy "
                "of the model's folder, or equal ones"
            )

    @property
    def ranks(self) -> Ranks:
        """The ranks, once the model is loaded.

        Raises:
            RunError: the service is closed, and another model has them.
        """
        assert self._ranks is not None, "no model is loaded"
        if self._closed and not is_idle(self._ranks):
            raise RunError("this train service is closed, and another model has its ranks")
        return self._ranks

    def places(self) -> Sequence[Mapping[str, Any]]:
        """Where the ranks are, also after the service is closed."""
        return self._places

    def close(self) -> None:
        """Let go of the ranks; those that have the model answer until another takes them."""
        if self._ranks is not None and not self._closed:
            self._closed = True
            if self._begun:
                self._ranks.kill()
            else:
                give_back(self._ranks)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        return self.ranks.all("ask", method, *arguments)

    # ----------------------------------------------------------------------- passes

    def _plan(self, batch: Batch) -> Plan:
        rows = self.config.micro_batch_size or MICRO_BATCH_ROWS
        return Plan.of(batch, len(self.ranks), size=rows, tokens=self._tokens, packs=self._packs)

    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens, [B, T], 0.0 where ``loss_mask`` is 0."""
        return self._numbers(batch, "log_probs")

    def compute_values(self, batch: Batch) -> torch.Tensor:
        """Values of the state before each token, [B, T], 0.0 where ``loss_mask`` is 0.

        Raises:
            ConfigError: the service has no value head.
        """
        if not self.config.value_head:
            return super().compute_values(batch)
        return self._numbers(batch, "values")

    def _numbers(self, batch: Batch, name: str) -> torch.Tensor:
        found = torch.zeros(batch.values["input_ids"].shape)
        for parts in self._plan(batch).passes:
            given = [("numbers", part.sent, name) for part in parts]
            for part, numbers in zip(parts, self.ranks.each("ask", given), strict=True):
                if part.rows is not None:
                    found[part.rows] = numbers
        return found

    def forward_backward(self, batch: Batch, loss: WeightedLoss) -> dict[str, tuple[float, float]]:
        """Add the gradient of ``loss`` over ``batch``; returns metrics as (sum, count).

        Raises:
            ConfigError: the loss needs values and the service has no value head.
        """
        needs = loss.needs
        if "values" in needs and not self.config.value_head:
            self._no_value_head()
        return accumulate_gradient(self._forward_passes(batch, needs), loss)

    def _forward_passes(
        self, batch: Batch, needs: Sequence[str]
    ) -> Iterator[tuple[torch.Tensor, Batch]]:
        """Log-probabilities of each rank in turn; the ranks go backward when all had theirs."""
        plan = self._plan(batch)
        for parts in plan.passes:
            leaves = self._leaves(parts, needs)
            for part, leaf in zip(parts, leaves, strict=True):
                if part.whole is not None and leaf is not None:
                    part.whole.values.update({name: leaf[name] for name in needs})
                    yield leaf["log_probs"], part.whole
            self.ranks.each("ask", [("end_pass", given) for given in gradients_of(leaves)])
        for whole in plan.untrained:
            zeros = torch.zeros(whole.values["input_ids"].shape)
            whole.values.update(dict.fromkeys(needs, zeros))
            yield zeros, whole

    def _leaves(
        self, parts: Sequence[Part], needs: Sequence[str]
    ) -> list[dict[str, torch.Tensor] | None]:
        """What each rank computed, as tensors that take gradients; None: an idle rank."""
        rng = torch.get_rng_state() if self._draws else None
        given = [("start_pass", part.sent, needs, rng) for part in parts]
        answers = self.ranks.each("ask", given)
        if rng is not None:
            torch.set_rng_state(answers[0][2])
        return [
            None
            if part.rows is None
            else {n: v.requires_grad_() for n, v in {"log_probs": log_probs, **extras}.items()}
            for part, (log_probs, extras, _) in zip(parts, answers, strict=True)
        ]

    def optimizer_step(self) -> dict[str, float]:
        """Clip and apply the accumulated gradient; one that is not finite is dropped."""
        adam = AdamParams.at(self.config, self.optimizer_steps)
        report: dict[str, float] = self._ask("apply_gradient", adam)[0]
        self.optimizer_steps += math.isfinite(report["grad_norm"])
        return report

    # ---------------------------------------------------------------------- weights

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name, whole, with the adapter's part added if there is one.

        Of a model with an adapter, the frozen weights come once; from then on the adapter alone.
        """
        if not self._adapts:
            found = self._base_weights()
            self.moved_bytes = _bytes_of(found)
            return found
        return merge(*self._parts())

    def sync_to(self, inference: InferenceService) -> None:
        """Give the current weights to the engine; the adapter alone to one that merges it.

        Engines of the cluster get whole weights from the ranks, without a way through the driver.
        """
        if isinstance(inference, RayInferenceService) and self._sends_to(inference):
            self._deliver(inference)
            return
        if not self._adapts or not inference.merges_adapters:
            super().sync_to(inference)
            return
        frozen, products = self._parts()
        inference.update_adapter(
            AdapterWeights(lambda: frozen, frozen, products, merge), self.version
        )

    def _sends_to(self, inference: RayInferenceService) -> bool:
        wanted = self.config.transfer != "store" and inference.takes_weights
        return wanted and not self._adapts

    def _deliver(self, inference: RayInferenceService) -> None:
        """Send whole weights to all replicas; where some die meanwhile, begin anew with others."""
        version, buckets = self.version, self._buckets()

        def present() -> tuple[str, Any]:
            return "give", ("update_weights", self.ranks.refer("sent_weights"), version)

        while not self._send(inference.replicas, buckets, version, present):
            pass
        self.moved_bytes = sum(map(size_of, buckets))
        inference.version = version

    def _send(
        self,
        replicas: Replicas,
        buckets: Sequence[Bucket],
        version: int,
        present: Callable[[], tuple[str, Any]],
    ) -> bool:
        """Have all ranks send weights, and all replicas take them at the same time.

        Args:
            replicas: of the engine.
            buckets: what is sent.
            version: of the weights.
            present: how a replica that takes over later gets them: a method of its actor, and
                arguments.

        Returns:
            Whether all have them; else replicas have died and were replaced.

        Raises:
            RunError: a rank died, too many replicas have died, or one is not reached.
            Exception: what an engine raises.
        """
        link = self._opened_link(replicas)
        self._transfers += 1
        sent = (link, self._transfers, buckets)
        taken = DaemonThreads(1).submit(
            lambda: replicas.take_sent(version, sent, lambda: end(link), present)
        )
        try:
            faults = [fault for fault in self.ranks.all("send_weights", *sent) if fault]
        except BaseException:
            self._link = None
            end(link)
            raise
        if faults:
            self._link = None
            end(link)
        done: bool = taken.result()
        if done and faults:
            raise RunError(f"weights did not reach the engines: {faults[0]}")
        return done

    def _opened_link(self, replicas: Replicas) -> Link:
        """The link to the replicas that live."""
        if self._link is None or self._linked != (replicas, replicas.lives):
            places = replicas.memories()
            self._linked, self._transfers = (replicas, replicas.lives), 0
            ranks, timeout = self.ranks, self.config.timeout
            own: list[str] = ranks.all("memory", self._device)
            shares = self.config.transfer != "broadcast"
            near = [own.index(m) if m in own and shares else None for m in places]
            ends = [own[0], *(m for m, rank in zip(places, near, strict=True) if rank is None)]
            # NCCL takes no card twice.
            cards = all(m.startswith("cuda") for m in ends) and len(set(ends)) == len(ends)
            port = ranks.all("open_store", ranks.host, timeout)[0]
            backend: Literal["gloo", "nccl"] = "nccl" if cards else "gloo"
            self._link = Link(ranks.host, port, tuple(near), backend, timeout)
        return self._link

    def _parts(self) -> tuple[dict[str, torch.Tensor], dict[str, Product]]:
        """The frozen weights and what the adapter adds; the former are gathered once."""
        self.moved_bytes = 0
        if self._base is None:
            self._base = self._base_weights()
            self.moved_bytes += _bytes_of(self._base)
        products: dict[str, Product] = self._ask("products")[0]
        self.moved_bytes += sum(own.down.nbytes + own.up.nbytes for own in products.values())
        return self._base, products

    def _base_weights(self) -> dict[str, torch.Tensor]:
        """The weights without the adapter, gathered in buckets, so that one is on its way."""
        found: dict[str, torch.Tensor] = {}
        for bucket in self._buckets():
            names = [name for slot in bucket for name in slot.names]
            found |= self._ask("base_weights", names)[0]
        return found

    def _buckets(self) -> list[list[Slot]]:
        if self._slots is None:
            self._slots = self._ask("weight_slots")[0]
        return fill_buckets(self._slots, _BUCKET)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights; of a model with an adapter the frozen ones, and begin a new one."""
        self._base = None
        self._ask("load_weights", {name: value.cpu() for name, value in weights.items()})

    def fix_value_bias(self) -> None:
        """Keep the bias of the value head at 0."""
        if self.config.value_head:
            self._ask("fix_value_bias")

    def export(self, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False) -> None:
        """Write weights and tokenizer as the service ``local`` does; rank 0 writes.

        Raises:
            UsageError: the adapter alone is wanted and there is none.
        """
        if adapter:
            self._ask("save_adapter", Path(folder).absolute())
        else:
            self._ask("export", Path(folder).absolute(), tokenizer)

    def export_scorer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a sequence classifier of one label, as the service ``local`` does.

        Raises:
            ConfigError: there is no value head.
            UsageError: the architecture has no such classifier.
        """
        self._ask("export_scorer", Path(folder).absolute(), tokenizer)

    # ------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The state of the service ``local``, whose tensors the ranks save."""
        return RanksState(self, self.ranks.all("describe")[0])  # type: ignore[return-value]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back a state: one in parts, of any number of ranks, or one of ``local``."""
        self._base = None
        if isinstance(state, SavedShards):
            self.ranks.all("restore", str(state.folder.absolute()), state.tree)
        else:
            self._ask("load_state_dict", dict(state))
        self.optimizer_steps = int(state["optimizer_steps"])


def _bytes_of(weights: Mapping[str, torch.Tensor]) -> int:
    """Their bytes; weights that are one count once."""
    return sum({weight.data_ptr(): weight.nbytes for weight in weights.values()}.values())


class RanksState(ShardedState):
    """The present state of the ranks; what is read of it is gathered.

    Args:
        service: whose ranks they are.
        tree: see :class:`~plugrl.core.run.checkpoints.shards.ShardedState`.
    """

    def __init__(self, service: FsdpTrainService, tree: Mapping[str, Any]) -> None:
        super().__init__(tree)
        self._service = service

    def read(self, names: Iterable[str]) -> Mapping[str, torch.Tensor]:
        """Whole tensors by name, gathered from the ranks."""
        wanted = list(names)
        found: dict[str, torch.Tensor] = (
            self._service.ranks.all("gather", wanted)[0] if wanted else {}
        )
        return found

    def write(self, folder: Path) -> None:
        """Let each rank write its part."""
        self._service.ranks.all("save", str(folder.absolute()))
