"""Names of metrics are looked up before a run, and those of users when they should have come."""

import pytest

from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.experiment import prepare, start
from plugrl.core.sweep import plan_runs
from plugrl.core.text.evaluate.evaluator import EvaluationRunResult, Evaluator
from plugrl.core.text.rollout.metrics import OF_ATTEMPTS, rollout_metrics
from plugrl.core.text.self_hosted import SelfHostedTrainer


class Vowels(Evaluator):
    """An evaluator of a user, which says nothing of its metrics."""

    def evaluate(self, data, evaluation_target):
        vowels = float(evaluation_target.final_answer.count("a"))
        return EvaluationRunResult(vowels, metrics={"vowels": vowels})


class Declared(Vowels):
    """One that says them."""

    metric_names = ("vowels",)


class Inheriting(Declared):
    """One that inherits what another says, and gives more."""

    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(1.0, metrics={"vowels": 1.0, "consonants": 1.0})


@pytest.fixture
def evaluators(registry):
    for cls in (Vowels, Declared, Inheriting):
        registry.register("evaluator", cls.__name__.lower(), cls)


def faults(tree):
    try:
        prepare(tree)
    except ConfigError as error:
        return list(error.faults)
    return []


def stops_at(config, name, **sections):
    trainer = {"stop_at": {name: 0.5}}
    return faults(config(**{**sections, "trainer": trainer}))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rollout/rewrd", "did you mean rollout/reward?"),
        ("rolout/reward", "did you mean rollout/reward?"),
        ("reward", "did you mean rollout/reward?"),
        ("zzz/qqq", "names begin with validation/, rollout/, train/"),
        ("rollout", "reports no metric 'rollout'"),
        ("rollout/exact_mach", "did you mean rollout/exact_match?"),
        ("validation/exact_mach", "did you mean validation/exact_match?"),
        ("validation/sums/exact_mach", "reports no metric 'validation/sums/exact_mach'"),
        ("test/exact_match", "reports no metric 'test/exact_match'"),
        ("validation/pass@2", "reports no metric 'validation/pass@2'"),
        ("sync", "reports no metric 'sync'"),
    ],
)
def test_a_misspelt_metric_of_stop_at_is_found_beforehand(config, name, says):
    (fault,) = stops_at(config, name)
    assert fault.startswith(f"trainer.stop_at.{name} (")
    assert says in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    "name",
    [
        *("rollout/reward", "rollout/exact_match", "validation/reward_max"),
        *("validation/sums/exact_match", "validation/sums/policy/invalid", "train/anything"),
        *("sync/parity", "pool/waiting", "time/rollout", "rollout/worker_restarts"),
    ],
)
def test_what_may_be_reported_is_let_through(config, name):
    assert stops_at(config, name) == []


def test_a_metric_of_validations_needs_validations(config):
    (fault,) = stops_at(config, "validation/reward", validate={"every": 0})
    assert "validate.every=0 has none during training; set validate.every" in fault
    (fault,) = stops_at(config, "validation/reward", validate={"enabled": False})
    assert "reports no metric 'validation/reward'" in fault


def test_several_samples_give_metrics_of_their_own(config):
    several = {"samples": 4, "temperature": 1.0}
    for name in ("pass@2", "best@4", "majority@4"):
        assert stops_at(config, f"validation/{name}", validate=several) == []
    (fault,) = stops_at(config, "validation/pass@3", validate=several)
    assert "reports no metric 'validation/pass@3'" in fault


@pytest.mark.parametrize(
    ("score", "says"),
    [
        ("validation/exact_mach", "did you mean validation/exact_match?"),
        ("exact_match", "reports no metric 'exact_match'"),
        ("zzz", "names begin with validation/"),
        ("rollout/reward", "is no metric of a validation; their names begin with validation/"),
    ],
)
def test_a_score_that_no_validation_gives(config, score, says):
    (fault,) = faults(config(validate={"score": score}))
    assert fault.startswith("validate.score (")
    assert says in fault
    assert faults(config(validate={"score": "validation/exact_match"})) == []


def test_a_metric_that_no_evaluator_gives_passes_nobody(config):
    (fault,) = faults(config(validate={"pass_metric": "exact_mach"}))
    assert fault.startswith("validate.pass_metric (")
    assert fault.endswith("did you mean exact_match?")
    assert faults(config(validate={"pass_metric": "exact_match"})) == []


def test_evaluators_of_several_give_those_of_each(config):
    criteria = [
        {"evaluator": "exact_match", "name": "right"},
        {"evaluator": {"type": "regex", "pattern": "a"}},
    ]
    worker = {"evaluator": {"type": "weighted", "criteria": criteria}}
    for name in ("right", "right/exact_match", "regex/extracted"):
        assert stops_at(config, f"rollout/{name}", rollout_worker=worker) == []
    (fault,) = stops_at(config, "rollout/regex/extractd", rollout_worker=worker)
    assert fault.endswith("did you mean rollout/regex/extracted?")


@pytest.mark.parametrize(
    ("evaluator", "refused"), [("vowels", 0), ("declared", 1), ("inheriting", 0)]
)
def test_an_evaluator_of_a_user_says_what_it_gives_or_may_give_anything(
    evaluators, config, evaluator, refused
):
    worker = {"evaluator": evaluator}
    assert len(stops_at(config, "rollout/consonants", rollout_worker=worker)) == refused
    assert stops_at(config, "rollout/vowels", rollout_worker=worker) == []
    assert len(stops_at(config, "rolout/vowels", rollout_worker=worker)) == 1


@pytest.mark.parametrize(
    ("name", "step", "close"),
    [
        ("rollout/vowel", 1, "rollout/vowels"),
        ("train/los", 1, "train/loss"),
        ("validation/vowel", 0, "validation/vowels"),
    ],
)
def test_what_only_the_run_shows_ends_its_first_step(evaluators, config, name, step, close):
    tree = config(trainer={"stop_at": {name: 0.5}}, rollout_worker={"evaluator": "vowels"})
    match = (
        rf"^trainer.stop_at: step {step} reported no metric '{name}'; did you mean {close}\?; the"
    )
    with pytest.raises(RunError, match=match) as caught:
        start(prepare(tree))
    assert "\n" not in str(caught.value)


def test_a_trainer_of_a_user_may_have_families_of_its_own(evaluators, registry, config):
    class Own(SelfHostedTrainer):
        def _one_step(self, step):
            return super()._one_step(step) | {"mine/number": float(step)}

        def _prepare_batch(self, batch):
            batch.metadata["advantages"] = [1.0] * len(batch)
            return batch, {}

    registry.register("trainer", "own", Own)
    run = start(prepare(config("own", trainer={"stop_at": {"mine/number": 1.0}})))
    assert run.status["step"] == 1
    with pytest.raises(RunError, match=r"no metric 'mine/numbr'; did you mean mine/number\?"):
        start(prepare(config("own", trainer={"stop_at": {"mine/numbr": 1.0}})))


def test_a_score_of_a_user_is_named_by_the_first_validation(evaluators, config):
    tree = config(validate={"score": "validation/vowel"}, rollout_worker={"evaluator": "vowels"})
    with pytest.raises(RunError, match=r"no metric 'validation/vowel'.*did you mean validation/vo"):
        start(prepare(tree))


def test_a_sweep_looks_its_metrics_up_before_the_first_run(config):
    tree = config()
    with pytest.raises(UsageError, match=r"--metric: .*did you mean validation/exact_match\?"):
        plan_runs(tree, ["data.batch_size=1,2"], 1, metrics=["validation/exact_mach"])
    assert len(plan_runs(tree, ["data.batch_size=1,2"], 1, metrics=["validation/reward"])) == 2


def test_attempts_report_the_names_that_are_looked_up(trajectories):
    given = {name.partition("/")[2] for name in rollout_metrics(trajectories)}
    assert given == {*OF_ATTEMPTS, "vowels", "evaluator/reward"}


@pytest.fixture
def trajectories():
    from plugrl.core.text.trajectory import Trajectory

    common = {"model": "policy", "tokens": [1, 2], "loss_mask": [0, 1], "logprobs": [0.0, -1.0]}
    made = Trajectory(
        **common, group_id="a", run_id=0, versions=[0, 0], reward=1.0, token_rewards=[0.0, 0.5]
    )
    made.metrics = {"vowels": 1.0, "reward": 2.0}
    return [made]


def test_all_that_a_run_reports_is_let_through(config):
    """Whatever a run has reported can be named in ``stop_at`` of one like it."""
    tree = config(validate={"samples": 2, "temperature": 1.0})
    reported = {name for line in start(prepare(tree)).metrics for name in line}
    names = sorted(name for name in reported if "/" in name)
    assert len(names) > 30
    tree["trainer"]["stop_at"] = dict.fromkeys(names, 1e9)
    assert faults(tree) == []


def test_names_are_looked_up_in_each_phase(config):
    tree = config("sequence")
    trainer = tree["trainer"]
    trainer.pop("total_train_steps")
    own = {"type": "self_hosted_grpo", "total_train_steps": 1, "stop_at": {"rollout/rewrd": 1}}
    trainer["phases"] = [{"name": "a", "trainer": own}]
    (fault,) = faults(tree)
    assert fault.startswith("trainer.phases[0].trainer.stop_at.rollout/rewrd (")
    assert fault.endswith("did you mean rollout/reward?")
