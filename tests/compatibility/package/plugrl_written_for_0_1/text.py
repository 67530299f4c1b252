"""Single-turn answers of a language model: task, worker, evaluator, advantage, loss, trainer."""

from dataclasses import dataclass

import plugrl


class Doubles(plugrl.Scenario):
    def build(self, seed):
        items = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(10)]
        splits = {"train": items, "validation": items[:4]}
        return plugrl.ScenarioInstance(name="doubles", datasets=splits)


def one_turn(task, worker):
    model = worker.config.model
    tokenizer = task.tokenizers[model]
    prompt = tokenizer.encode(task.prompt)
    answer = task.ask_now(model, prompt)
    trajectory = plugrl.trajectory_of(task, model, prompt, answer)
    return worker.judge(task, trajectory.copied(), tokenizer.decode(answer.tokens))


@dataclass
class DigitsConfig:
    of: int = plugrl.described(4, "digits that give the full reward")


class Digits(plugrl.Evaluator):
    Config = DigitsConfig

    def evaluate(self, data, evaluation_target):
        count = sum(c.isdigit() for c in evaluation_target.final_answer)
        share = count / self.config.of
        return plugrl.EvaluationRunResult(reward=share, metrics={"digits": share})


def centered(rewards, group, run, valid, batch, config):
    return rewards - rewards[valid].mean()


def weighted(logp, batch, config):
    mask = batch.values["loss_mask"]
    per_token = -batch.values["advantages"] * logp
    return per_token, {"nll": plugrl.masked_sum(-logp, mask)}


class Lines(plugrl.Tracker):
    def log(self, step, metrics):
        # In one piece: trackers have a thread of their own.
        print(f"tracked {step} {'train/nll' in metrics}\n", end="")


class PolicyGradient(plugrl.SelfHostedTrainer):
    def _prepare_batch(self, batch):
        rewards = batch.metadata["rewards"]
        group = plugrl.group_numbers(batch.metadata["group_id"])
        assert len(rewards) == len(group) == len(batch.metadata["run_id"])
        return self._compute_advantage(batch), {"best": float(rewards.max())}
