"""A trainer of agents that talk: learns from all episodes that earned something."""

import numpy as np

import plugrl


class Best(plugrl.PureTextRlTrainer):
    def _stage_create_fine_tune_jobs(self, rollouts):
        earned = rollouts["next", "agents", "reward"].sum((1, 2))
        chosen = list(np.flatnonzero(earned >= np.median(earned)))
        for group in self.shared_model_groups.values():
            examples = {
                agent: plugrl.supervised_examples(rollouts, chosen, self.protocol.index(agent))
                for agent in group.agents
            }
            group.create_supervised_fine_tune_job(examples, self._get_fine_tune_job_name(group))
