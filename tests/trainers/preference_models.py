"""Two small models with given weights, and judged answers, for numbers that others can repeat."""

import json

import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.models import Model, Models
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
PAIRS = [("ab", "abc", "h"), ("cde", "e", "edcba"), ("f", "gg", "fa"), ("abcd", "hgf", "hgfe")]
#: The seven rows of layout labels: good answers, then bad ones but the last. No row follows one of
#: its prompt, since TRL joins a prompt with the answer of the row before it whatever its prompt.
LABELS = [*((p, good, 1.0) for p, good, _ in PAIRS), *((p, bad, 0.0) for p, _, bad in PAIRS[:3])]
MARGINS = [0.5, 0.0, 1.25, 2.0]


def spec(name, device):
    source = {"path": None, "config": CONFIG, "tokenizer": {"characters": "abcdefgh"}}
    view = ConfigView({**source, "dtype": "float32"}, checked=True)
    return ModelSpec(name, view, 0, device)


@torch.no_grad()
def given_weights(model, shift):
    """Weights by a formula, so that they depend on no generator of random numbers."""
    for number, (_, weight) in enumerate(sorted(model.named_parameters()), 1):
        places = torch.arange(weight.numel(), dtype=torch.float64)
        weight.copy_((0.5 * torch.sin(0.7 * places * number + shift)).view(weight.shape))


def make_models(device="cpu", **options):
    """A trained policy and a frozen reference."""
    made = {}
    for shift, name in enumerate(("policy", "reference")):
        inference = TransformersInferenceService({})
        inference.load(spec(name, device))
        given_weights(inference._model, float(shift))
        inference._runner.refresh()
        made[name] = Model(name, inference, None)
    service = LocalTrainService({"grad_clip_norm": 1e9, **options})
    service.load(spec("policy", device))
    given_weights(service._model, 0.0)
    head = service._forward.value_head
    if head is not None:
        service.fix_value_bias()
        numbers = torch.cos(torch.arange(CONFIG["hidden_size"]).float())[None]
        head.weight.data = numbers.to(device)
    made["policy"].train = service
    return Models(made)


def trajectory(tokenizer, prompt, answer, group, **fields):
    before = tokenizer.encode(prompt)
    after = [*tokenizer.encode(answer), tokenizer.eos_token_id]
    mask = [0] * len(before) + [1] * len(after)
    return Trajectory([*before, *after], mask, group_id=str(group), extra_fields=fields)


def pairs(tokenizer, margins=False):
    return [
        trajectory(
            tokenizer,
            prompt,
            text,
            i,
            preferred=good,
            **({"margin": MARGINS[i]} if margins else {}),
        )
        for i, (prompt, chosen, rejected) in enumerate(PAIRS)
        for text, good in ((chosen, 1.0), (rejected, 0.0))
    ]


def labels(tokenizer):
    return [
        trajectory(tokenizer, prompt, text, i, preferred=good)
        for i, (prompt, text, good) in enumerate(LABELS)
    ]


def write(models, folder):
    """Write models and rows as ``trl_preferences.py`` reads them."""
    for name, model in models.items():
        model.inference._model.save_pretrained(folder / name)
        model.inference.tokenizer.wrapped.save_pretrained(folder / name)
    models["policy"].trained().export_scorer(
        folder / "reward", models["policy"].inference.tokenizer
    )
    keys = ("prompt", "chosen", "rejected")
    rows = [dict(zip(keys, row, strict=True)) for row in PAIRS]
    (folder / "pairs.json").write_text(json.dumps(rows))
    rows = [{**row, "margin": m} for row, m in zip(rows, MARGINS, strict=True)]
    (folder / "margins.json").write_text(json.dumps(rows))
    rows = [{"prompt": p, "completion": text, "label": bool(good)} for p, text, good in LABELS]
    (folder / "labels.json").write_text(json.dumps(rows))


def target(answer):
    from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget

    return BaseEvaluationTarget(answer)
