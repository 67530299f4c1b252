"""A copy of the file of a trainer of small networks is an algorithm of one's own."""

import inspect

import pytest

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.trainers import a2c, dqn, reinforce, sac, spg, td3, vanilla_ppo

CARTPOLE = {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2}
PENDULUM = {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 2}
TWO_CARTPOLES = {
    "type": "pettingzoo",
    "environment": "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles",
    "num_envs": 2,
}
OLD_STEPS = {"num_iterations": 1, "frames_per_batch": 64, "minibatch_size": 16}
LATE = {"learning_starts": 32}
#: The fast tests take a policy gradient and a learner from replay.
FAST = {"vanilla_ppo", "dqn"}
#: Of each trainer: its file, a line of its loss, what stands there instead, the task and sections,
#: and the metric, which is three times as large in the first update.
CASES = {
    "vanilla_ppo": (
        vanilla_ppo,
        "            pg_loss = pg_loss.mean()\n",
        "            pg_loss = 3 * pg_loss.mean()\n",
        {"scenario": CARTPOLE},
        "loss_objective",
    ),
    "a2c": (
        a2c,
        "        pg_loss = -(log_prob * advantage).mean()\n",
        "        pg_loss = 3 * -(log_prob * advantage).mean()\n",
        {"scenario": CARTPOLE},
        "loss_objective",
    ),
    "reinforce": (
        reinforce,
        '        losses["loss_objective"] = -(log_prob * weight).mean()\n',
        '        losses["loss_objective"] = 3 * -(log_prob * weight).mean()\n',
        {"scenario": CARTPOLE},
        "loss_objective",
    ),
    "dqn": (
        dqn,
        "        loss = self.distance(q, td_target)\n",
        "        loss = 3 * self.distance(q, td_target)\n",
        {"scenario": CARTPOLE, "rl": OLD_STEPS, "dqn": {**LATE, "train_freq": 32}},
        "loss_qvalue",
    ),
    "sac": (
        sac,
        "        loss_actor = (alpha * log_prob - min_q).mean()\n",
        "        loss_actor = 3 * (alpha * log_prob - min_q).mean()\n",
        {"scenario": PENDULUM, "rl": OLD_STEPS, "sac": {**LATE, "train_freq": 32}},
        "loss_actor",
    ),
    "td3": (
        td3,
        '        return {"loss_qvalue": loss_qvalue, "qvalue": q.detach().mean()}\n',
        '        return {"loss_qvalue": 3 * loss_qvalue, "qvalue": q.detach().mean()}\n',
        {"scenario": PENDULUM, "rl": OLD_STEPS, "td3": {**LATE, "train_freq": 32}},
        "loss_qvalue",
    ),
    "spg": (
        spg,
        '        losses = {"loss_critic": v_loss * self.critic_coef}\n',
        '        losses = {"loss_critic": 3 * v_loss * self.critic_coef}\n',
        {"scenario": TWO_CARTPOLES},
        "left/loss_critic",
    ),
}


def trained(sections, tmp_path):
    """The metrics of one iteration with one update."""
    tree = {
        "rl": {"num_iterations": 1, "frames_per_batch": 64, "num_epochs": 1, "minibatch_size": 64},
        **sections,
        "validate": {"enabled": False},
        "settings": {"progress": "none", "checkpoint_every": 0, "runs_folder": str(tmp_path)},
    }
    return plugrl.train(tree).last_metrics


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.integration) for name in CASES],
)
def test_a_copy_with_one_line_changed_trains_with_its_own_loss(name, tmp_path):
    module, line, other, sections, metric = CASES[name]
    source = inspect.getsource(module)
    assert source.count(line) == 1
    (tmp_path / "mine.py").write_text(source.replace(line, other), encoding="utf-8")
    (trainer,) = (
        each
        for each, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, plugrl.Trainer)
        and value.__module__ == module.__name__
    )
    copy = {
        "custom_trainer_module_path": str(tmp_path / "mine.py"),
        "custom_trainer_class_name": trainer,
    }
    plain = trained({**sections, "trainer": name}, tmp_path)[f"train/{metric}"]
    own = trained({**sections, "trainer": copy}, tmp_path)[f"train/{metric}"]
    assert plain != 0
    assert own == pytest.approx(3 * plain, rel=1e-5)


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"scenario": CARTPOLE, "rl": {"num_epochs": 7}}, "has no effect on DqnTrainer"),
        ({}, "is missing; DqnTrainer needs one"),
    ],
)
def test_what_is_wrong_with_a_copy_is_said_with_its_name(sections, complaint, tmp_path):
    (tmp_path / "mine.py").write_text(inspect.getsource(dqn), encoding="utf-8")
    copy = {
        "custom_trainer_module_path": str(tmp_path / "mine.py"),
        "custom_trainer_class_name": "DqnTrainer",
    }
    with pytest.raises(ConfigError, match=complaint):
        prepare({**sections, "trainer": copy})
