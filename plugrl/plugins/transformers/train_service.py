"""The ``local`` train service: gradients and AdamW in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.plan import MICRO_BATCH_ROWS
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.run.process.memory import within_memory
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import (
    AdapterWeights,
    InferenceService,
    ModelSpec,
    TrainService,
)
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.learn.losses import WeightedLoss
from plugrl.core.text.learn.optimizer import AdamParams, OptimizerConfig
from plugrl.core.text.learn.step import accumulate_gradient, clip_and_step
from plugrl.core.text.memory_advice import loading_shortage, training_shortage
from plugrl.plugins.transformers.adapters import Adapter, adapter_findings
from plugrl.plugins.transformers.engine.streams import CAPTURING
from plugrl.plugins.transformers.loading import load_model, source_findings
from plugrl.plugins.transformers.merging import MergedWeights
from plugrl.plugins.transformers.saving import SourceForm
from plugrl.plugins.transformers.training.compiling import CompiledLayers, worth_compiling
from plugrl.plugins.transformers.training.forward import Forward
from plugrl.plugins.transformers.training.masters import MasterWeights, type_fault
from plugrl.plugins.transformers.training.memory import PassMemory
from plugrl.plugins.transformers.training.micro_batches import MicroBatch, micro_batches
from plugrl.plugins.transformers.training.optimizers import (
    OptimizerName,
    embedding_names,
    load_moments,
    make_optimizer,
    moments,
    optimizer_fault,
)
from plugrl.plugins.transformers.training.packing import enable, enable_varlen
from plugrl.plugins.transformers.training.value_head import load_value_head, make_value_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView


@dataclass
class LocalTrainConfig(OptimizerConfig):
    """Options of the train service ``local``."""

    optimizer: OptimizerName = described(
        "adamw",
        "adamw; adamw_8bit: its moments in 8 bits, by the extra torchao; muon: orthogonal updates "
        "of the matrices in the layers, AdamW for the rest. All have AdamW's options",
    )
    micro_batch_size: int | None = described(
        None,
        "rows of one forward and backward pass; none: on a CUDA device as many tokens as it has "
        "memory for, elsewhere 64 rows",
        at_least=1,
        at_most=10**6,
    )
    micro_batch_tokens: int | None = described(
        None,
        "tokens of one forward and backward pass; takes the place of micro_batch_size",
        at_least=1,
        at_most=10**9,
    )
    packing: Literal["auto", "always", "never"] = described(
        "auto", "rows side by side without padding; auto: where the model can"
    )
    head_chunk_tokens: int = described(
        2048, "tokens whose logits are in memory at once", at_least=1, at_most=10**9
    )
    gradient_checkpointing: bool = described(
        False, "compute layers again in the backward pass instead of keeping what they need"
    )
    compile: bool | Literal["auto"] = described(
        "auto", "layers through torch.compile; auto: in runs long enough to earn it back"
    )
    activation_memory_budget: float = described(
        0.4,
        "the share of activations that compiled layers keep for the backward pass, on a CUDA "
        "device; the rest is computed again. 1: takes the most memory and the least time",
        at_least=0,
        at_most=1,
    )
    master_weights: bool | str = described(
        "auto",
        "train float32 copies of the weights; auto: where the weights have a lower precision",
    )
    value_head: bool = described(
        False, "train a number for each state beside the model, for advantages such as gae"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.master_weights, str) and self.master_weights != "auto":
            raise ConfigError("master_weights must be auto, true or false")


class LocalTrainService(TrainService):
    """Trains a ``transformers`` model with AdamW: all its weights, or an adapter."""

    Config: ClassVar[type] = LocalTrainConfig
    loads_weights: ClassVar[bool] = True
    _base_replaced = False
    _compiled: CompiledLayers | None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A folder or configuration that makes no model, or an adapter that cannot be made."""
        yield from source_findings(check)
        yield from adapter_findings(check)
        section: Any = check.root
        for key in check.path.split("."):
            section = section[key]
        name = check.path.split(".")[1]
        faults = {
            f"{check.path}.optimizer": optimizer_fault(section.get("optimizer") or "adamw"),
            f"models.{name}.source.dtype": type_fault(check.root.models[name].source),
        }
        yield from ((path, fault) for path, fault in faults.items() if fault is not None)

    @classmethod
    def device_plan(
        cls, model: ConfigView, devices: int, machines: int
    ) -> Sequence[tuple[str, str]]:
        """What each of ``devices`` would hold and receive under the service ``fsdp``."""
        from plugrl.plugins.distributed.plan import device_rows

        return device_rows(model, devices, machines)

    def load(self, spec: ModelSpec) -> None:
        """Load the model and make its optimizer.

        Raises:
            ConfigError: the source or the adapter cannot be used.
            RunError: there is not the memory.
        """
        with self._within_memory(
            lambda: loading_shortage(spec.name, spec.device, spec.source.dtype)
        ):
            self._load(spec)
            self._begin_compiling(spec)

    def _load(self, spec: ModelSpec) -> None:
        faults = {
            "train.optimizer": optimizer_fault(self.config.optimizer, spec.device),
            "source.dtype": type_fault(spec.source),
        }
        for setting, fault in faults.items():
            if fault is not None:
                raise ConfigError(f"models.{spec.name}.{setting}: {fault}")
        self._model = load_model(spec)
        self._form = SourceForm(self._model, spec.source)
        self._adapter = None if spec.adapter is None else Adapter(self._model, spec)
        self._frozen_edition = object()
        if self._adapter is not None:
            _save_merged(self._model, self._adapter)
        # Trial passes must draw no random numbers: a resumed run has its own by now.
        self._set_dropout(False)
        self._device = spec.device
        packs = self._can_pack(spec)
        self._forward = Forward(
            self._model,
            packs=packs,
            by_lengths=packs and enable_varlen(self._model),
            head_chunk_tokens=self.config.head_chunk_tokens,
            memory=None if spec.loaded is None else spec.loaded.memory,
        )
        if self.config.gradient_checkpointing:
            _checkpoint_layers(self._model)
        if self.config.value_head:
            width = self._forward.hidden_width()
            self._forward.value_head = make_value_head(width, spec.device)
        self._place(spec)
        # Changed in place from now on; a walk through all modules takes as long as copying them.
        self._own_weights = self._model.state_dict()
        trained = self._adapter.parameters if self._adapter else None
        trained = trained or dict(self._model.named_parameters())
        self._masters = self._make_masters(trained)
        held = dict(self._masters.copies if self._masters else trained)
        if self._forward.value_head is not None:
            held.update(self._forward.value_head.named_parameters(prefix="value_head"))
        self._optimized = self._optimizer_parameters(held)
        self._optimizer = self._make_optimizer(held, trained)
        self._memory = PassMemory(spec, self.config, self._optimized)
        self.optimizer_steps = 0
        self._name, self._compiled = spec.name, None

    def _begin_compiling(self, spec: ModelSpec) -> None:
        if worth_compiling(self.config.compile, self._model, spec.train_steps):
            self._compile()

    def _place(self, spec: ModelSpec) -> None:
        """Put the parameters where they are trained; here they are already there."""

    def _optimizer_parameters(
        self, held: Mapping[str, torch.nn.Parameter]
    ) -> list[torch.nn.Parameter]:
        """What the optimizer changes, of the parameters that are trained, by name."""
        return list(held.values())

    def _make_optimizer(
        self, held: Mapping[str, torch.nn.Parameter], trained: Mapping[str, torch.nn.Parameter]
    ) -> torch.optim.Optimizer:
        first, second = self.config.betas
        return make_optimizer(
            self.config.optimizer,
            dict(zip(held, self._optimized, strict=True)),
            embedding_names(self._model, trained),
            learning_rate=self.config.learning_rate,
            betas=(first, second),
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
        )

    def _whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm of the whole gradient, of that of the part which is in this process."""
        return norm

    def _compile(self) -> None:
        self._compiled = CompiledLayers(
            self._model,
            self._name,
            self._first_pass,
            self._forward.head,
            self.config.activation_memory_budget,
        )
        if self.is_compiled:
            self._memory.count_compiled()

    def _first_pass(self, batch: Batch) -> None:
        with torch.no_grad():
            self.differentiable(batch)
        self.differentiable(batch)[0].sum().backward()
        self._optimizer.zero_grad(set_to_none=True)
        self._set_dropout(False)

    def _make_masters(self, trained: Mapping[str, torch.nn.Parameter]) -> MasterWeights | None:
        wish = self.config.master_weights
        if wish == "auto":
            wish = any(weight.dtype != torch.float32 for weight in trained.values())
        return MasterWeights(trained) if wish else None

    def _can_pack(self, spec: ModelSpec) -> bool:
        wish = self.config.packing
        able = wish != "never" and enable(self._model)
        if wish == "always" and not able:
            raise ConfigError(
                f"models.{spec.name}.train.packing: a {self._model.config.model_type} model cannot "
                "be packed; use auto or never"
            )
        return able

    @contextmanager
    def _within_memory(self, shortage: Callable[[], str]) -> Iterator[None]:
        """Say ``shortage()`` where memory runs out; nothing is captured meanwhile."""
        with CAPTURING, within_memory(shortage):
            yield

    def _shortage(self) -> str:
        return training_shortage(self._name, self._device, self.config, self._memory.limit)

    @torch.no_grad()
    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens, [B, T], 0.0 where ``loss_mask`` is 0.

        Raises:
            RunError: memory ran out.
        """
        self._set_dropout(False)
        return self._numbers(batch, self._forward.log_probs)

    @torch.no_grad()
    def compute_values(self, batch: Batch) -> torch.Tensor:
        """Values of the state before each token, [B, T], 0.0 where ``loss_mask`` is 0.

        Raises:
            ConfigError: the service has no value head.
            RunError: memory ran out.
        """
        if self._forward.value_head is None:
            return super().compute_values(batch)
        self._set_dropout(False)
        return self._numbers(
            batch, lambda part: self._forward.with_needs(part, ["values"])[1]["values"]
        )

    def _numbers(self, batch: Batch, of_part: Callable[[MicroBatch], torch.Tensor]) -> torch.Tensor:
        """What the forward passes over micro-batches give, [B, T], on the CPU."""

        def passes() -> torch.Tensor:
            found = torch.zeros(batch.values["input_ids"].shape)
            for part in self._micro_batches(batch):
                found[part.rows] = of_part(part).cpu()
            return found

        with self._within_memory(self._shortage):
            return self._memory.fitting(passes, undo=lambda: True)

    def forward_backward(self, batch: Batch, loss: WeightedLoss) -> dict[str, tuple[float, float]]:
        """Add the gradient of ``loss`` over ``batch``; returns metrics as (sum, count).

        Raises:
            ConfigError: the loss needs values and the service has no value head.
            RunError: memory ran out.
        """
        self._set_dropout(True)
        needs = loss.needs
        if "values" in needs and self._forward.value_head is None:
            self._no_value_head()
        began = all(each.grad is None for each in self._optimized)

        def undo() -> bool:
            # Gradients of earlier batches are among those that are there.
            if began:
                for each in (*self._model.parameters(), *self._optimized):
                    each.grad = None
            return began

        with self._within_memory(self._shortage):
            return self._memory.fitting(
                lambda: accumulate_gradient(self._forward_passes(batch, needs), loss), undo
            )

    def _forward_passes(
        self, batch: Batch, needs: Sequence[str]
    ) -> Iterator[tuple[torch.Tensor, Batch]]:
        """Log-probabilities with their gradient, and the micro-batch with what ``needs`` names."""
        for part in self._micro_batches(batch):
            if needs:
                log_probs, extras = self._forward.with_needs(part, needs)
                part.batch.values.update(extras)
            else:
                log_probs = self._forward.log_probs(part)
            yield log_probs, part.batch

    def differentiable(
        self, batch: Batch, needs: Sequence[str] = ()
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities with their gradient, [B, T], and what ``needs`` names.

        Raises:
            ConfigError: values are needed and the service has no value head.
        """
        if "values" in needs and self._forward.value_head is None:
            self._no_value_head()
        self._set_dropout(True)
        part = self._one_part(batch)
        extras: dict[str, torch.Tensor] = {}
        if needs:
            log_probs, extras = self._forward.with_needs(part, needs)
        else:
            log_probs = self._forward.log_probs(part)
        back = torch.argsort(part.rows).to(log_probs.device)
        return log_probs[back], {name: values[back] for name, values in extras.items()}

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained: the weights or their float32 copies, and those of the value head."""
        return list(self._optimized)

    def after_optimizer_step(self) -> None:
        """Write float32 copies that an optimizer changed back to the weights."""
        if self._masters is not None:
            self._masters.write_back()

    @property
    def is_compiled(self) -> bool:
        """Whether the layers go through ``torch.compile``."""
        return self._compiled is not None and self._compiled.active

    @property
    def module(self) -> PreTrainedModel:
        """The model of ``transformers``, with its adapter if there is one."""
        return self._model

    def _set_dropout(self, active: bool) -> None:
        if self._adapter is not None:
            self._adapter.set_dropout(active)

    def _micro_batches(self, batch: Batch) -> Iterator[MicroBatch]:
        return micro_batches(
            batch,
            size=self.config.micro_batch_size or MICRO_BATCH_ROWS,
            tokens=self._memory.tokens(self._optimizer.state),
            packs=self._forward.packs,
            device=self._device,
        )

    def _one_part(self, batch: Batch) -> MicroBatch:
        (part,) = micro_batches(
            batch, size=len(batch), tokens=None, packs=self._forward.packs, device=self._device
        )
        return part

    def optimizer_step(self) -> dict[str, float]:
        """Clip and apply the accumulated gradient; one that is not finite is dropped."""
        return self.apply_gradient(AdamParams.at(self.config, self.optimizer_steps))

    def apply_gradient(self, adam: AdamParams) -> dict[str, float]:
        """An optimizer step with these numbers; :meth:`optimizer_step` has those of the section.

        Raises:
            RunError: memory ran out.
        """
        with self._within_memory(self._shortage):
            report, changed = clip_and_step(
                self._optimizer, self._optimized, adam, whole_norm=self._whole_norm
            )
        if changed:
            self.after_optimizer_step()
            self.optimizer_steps += 1
        return report

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name, with the adapter's part added if there is one."""
        return self._own_weights if self._adapter is None else self._adapter.merged_weights()

    def share_with(self, inference: InferenceService) -> None:
        """Let the engine use the weights themselves, but those that an adapter is merged into."""
        adapter = self._adapter
        inference.share_weights(self.weights() if adapter is None else adapter.untouched())

    def sync_to(self, inference: InferenceService) -> None:
        """Give the current weights to the engine; the adapter alone to one that merges it."""
        adapter = self._adapter
        if adapter is None or not inference.merges_adapters:
            super().sync_to(inference)
            return
        products = {name: product.cpu() for name, product in adapter.products().items()}
        weights = AdapterWeights(adapter.base, self._frozen_edition, products, MergedWeights)
        inference.update_adapter(weights, self.version)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights; of a model with an adapter the frozen ones, and begin a new one."""
        if self._adapter is not None:
            self._adapter.load_base(weights)
            self._base_replaced, self._frozen_edition = True, object()
        else:
            self._model.load_state_dict(dict(weights))
        if self._masters is not None:
            self._masters.read_weights()

    def state_dict(self) -> dict[str, Any]:
        """Weights, their float32 copies, optimizer and the number of optimizer steps.

        Of a model with an adapter: the adapter's weights, as ``peft`` names them, and the frozen
        ones only when they are no longer those of the source.
        """
        masters = {} if self._masters is None else {"masters": self._masters.state_dict()}
        head = self._forward.value_head
        return {
            **masters,
            **({} if head is None else {"value_head": head.state_dict()}),
            **self._weights_state(),
            "optimizer": moments(self._optimizer),
            "optimizer_steps": self.optimizer_steps,
            "compiled": self.is_compiled,
        }

    def _weights_state(self) -> dict[str, Any]:
        if self._adapter is None:
            return {"weights": dict(self._model.state_dict())}
        base = {"base": self._adapter.base_state()} if self._base_replaced else {}
        return {**base, "adapter": self._adapter.state_dict()}

    def export(self, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False) -> None:
        """Write weights and tokenizer as ``from_pretrained`` reads them, an adapter merged.

        They have the source's data type, and its ``generation_config.json`` is there too.

        Raises:
            UsageError: the adapter alone is wanted and there is none.
        """
        if adapter:
            self.save_adapter(folder)
            return
        self._form.save(self._model, self.weights(), tokenizer, folder)

    def fix_value_bias(self) -> None:
        """Keep the bias of the value head at 0."""
        if self._forward.value_head is not None:
            self._forward.value_head.bias.requires_grad_(False)

    def export_scorer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a sequence classifier of one label, an adapter merged.

        Raises:
            ConfigError: there is no value head.
            UsageError: the architecture has no such classifier.
        """
        from plugrl.plugins.transformers.classifier import write_classifier

        head = self._forward.value_head
        if head is None:
            self._no_value_head()
        write_classifier(self._model, self._form, self.weights(), head, tokenizer, folder)

    def save_adapter(self, folder: str | Path) -> None:
        """Write the adapter as ``peft`` reads it: ``PeftModel.from_pretrained(model, folder)``.

        Raises:
            UsageError: the model has no adapter.
        """
        if self._adapter is None:
            raise UsageError("the model has no adapter; set models.<name>.adapter to train one")
        self._adapter.save(folder)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        if "base" in state or self._adapter is None:
            self.load_weights(state["weights" if self._adapter is None else "base"])
        if self._adapter is not None:
            self._adapter.load_state_dict(state["adapter"])
        if self._masters is not None and "masters" in state:
            self._masters.load_state_dict(state["masters"])
        if self._forward.value_head is not None:
            load_value_head(self._forward.value_head, state["value_head"])
        load_moments(self._optimizer, state["optimizer"])
        self.optimizer_steps = int(state["optimizer_steps"])
        began = bool(state.get("compiled", False))
        # What a run began with, should its length be another one now.
        if self.config.compile == "auto" and began != self.is_compiled:
            if began:
                self._compile()
            elif self._compiled is not None:
                self._compiled.undo()


def _save_merged(model: PreTrainedModel, adapter: Adapter) -> None:
    """Let ``model.save_pretrained`` write what ``from_pretrained`` reads, the adapter merged."""

    def save_pretrained(folder: str | Path, **kwargs: Any) -> Any:
        # Only then: ranks hold parts, which they have put together already.
        if "state_dict" not in kwargs:
            kwargs["state_dict"] = dict(adapter.merged_weights())
        return type(model).save_pretrained(model, folder, **kwargs)

    model.save_pretrained = save_pretrained  # type: ignore[method-assign,assignment]


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute layers in the backward pass, which they do in training mode only.

    Dropout stays off: the sampler has none, and both must agree.
    """
    # transformers 5.24 renamed the method.
    name = "activation_checkpointing_enable"
    enable_it = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable_it({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
        for name in ("attention_dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
