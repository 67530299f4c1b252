"""Losses and gradients of TRL's GRPO trainer for given numbers, as JSON.

It runs where TRL is installed: ``python trl_policy.py < inputs.json``. The inputs are
log-probabilities, a mask, advantages and the options of each case, as in test_policy_losses.py.
"""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import GRPOTrainer

given = json.load(sys.stdin)
logp, old, ref, mask, advantages = (
    torch.tensor(given[name]) for name in ("logp", "old", "ref", "mask", "advantages")
)


def outcome(*, loss_type, level="token", beta=0.0, low=0.2, high=0.28, weights=None):
    """The loss and its gradient of the trainer's own ``_compute_loss``."""
    current = logp.clone().requires_grad_()
    same = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        reduce=lambda x, reduction=None: x,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
    )
    trainer = SimpleNamespace(
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=same,
        model=SimpleNamespace(training=True),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=weights is not None,
        current_gradient_accumulation_steps=1,
        max_completion_length=6,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *a, **k: (
            current,
            torch.ones_like(current),
            None,
        ),
    )
    zeros = torch.zeros(len(logp), 1, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": zeros,
            "prompt_mask": zeros + 1,
            "completion_ids": torch.zeros(logp.shape, dtype=torch.long),
            "completion_mask": mask,
            "advantages": advantages,
            "old_per_token_logps": old,
            "ref_per_token_logps": ref,
            "num_items_in_batch": mask.sum(),
            "importance_sampling_ratio": None if weights is None else torch.tensor(weights),
        },
    )
    loss.backward()
    return [loss.item(), current.grad.tolist()]


print(json.dumps({name: outcome(**case) for name, case in given["cases"].items()}))
