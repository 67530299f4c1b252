"""Memory of a CUDA device that decoding and training use in turns."""

import gc

import pytest
import torch

from plugrl.core.config.view import ConfigView
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import LoadedModel, ModelSpec
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService
from plugrl.trainers.self_hosted_cross_entropy import cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
LOSS = WeightedLoss(cross_entropy, {})
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
ROWS, NEW = 64, 1000


def services(shares, compiled):
    source = {
        "path": None,
        "config": MODEL,
        "tokenizer": {"characters": "abcdefghijklmnopqrstuvwxyz"},
        "dtype": "bfloat16",
    }
    view = ConfigView(source, checked=True)
    loaded = LoadedModel(shares)
    spec = ModelSpec("policy", view, 0, "cuda", trained=True, loaded=loaded)
    train = LocalTrainService({"learning_rate": 1e-3, "compile": compiled})
    engine = TransformersInferenceService({"compile": compiled})
    train.load(spec)
    engine.load(spec)
    train.share_with(engine)
    return train, engine


def sampled(engine, step):
    asked = [
        GenerationRequest([2, 3, 4], SamplingParams(max_new_tokens=NEW), (0, step, 0, row, 0))
        for row in range(ROWS)
    ]
    return [list(completion.tokens) for completion in engine.generate(asked)]


def trained(train, answers):
    rows = [Trajectory([2, 3, 4, *tokens], [0] * 3 + [1] * len(tokens)) for tokens in answers]
    batch = Batch.from_trajectories(rows)
    batch.values[LOSS_WEIGHTS] = aggregation_weights(batch.values["loss_mask"], "token-mean")
    train.forward_backward(batch, LOSS)
    train.optimizer_step()


def run(shares, compiled):
    """First answers, weights after three steps, captured steps, and the peak of memory in bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    train, engine = services(shares, compiled)
    answers, captured = [], []
    for step in range(3):
        answers.append(sampled(engine, step))
        trained(train, answers[-1])
        engine.update_weights(train.weights(), step + 1)
        steps = engine._idle[0]._ahead._steps
        captured.append([id(each) for each in steps.values()])
    weights = torch.cat([each.detach().flatten() for each in train.parameters()])
    return answers[0], weights, captured, torch.cuda.max_memory_reserved() - before


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_slots_and_activations_lie_in_the_same_memory(compiled):
    torch._dynamo.reset()
    first, apart, _, most = run(False, compiled)
    answers, shared, captured, peak = run(True, compiled)
    # 8 layers of 8 x 64 numbers of a key and a value, of 2 bytes, for each token of each row; and
    # weights, since the services apart have their own.
    slots = 2 * 8 * 8 * 64 * 2 * ROWS * NEW
    assert peak < most - 0.5 * slots
    assert answers == first
    # Gradients of attention are summed in any order, so that later samples differ.
    assert float((shared - apart).norm() / apart.norm()) < 0.02
    # The slots get their addresses back, so that no step is captured again.
    assert captured[0] == captured[1] == captured[2]
