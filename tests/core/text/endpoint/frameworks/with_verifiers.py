"""verifiers: an agent of its own chat program plays a task, and the task rewards it."""

import asyncio
import json
import os

import verifiers.v1 as vf
from animal import MODEL, QUESTION

CLIENT = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")


class Talk(vf.Task):
    """Rewards what the model says by its length."""

    @vf.reward
    async def length(self, trace):
        """Characters, up to the longest answer."""
        return float(len(trace.last_reply) % 7)


async def play():
    """The trace of one rollout."""
    config = vf.AgentConfig(
        harness={"id": "null"},
        runtime=vf.SubprocessConfig(),
        model=MODEL,
        client=CLIENT,
        sampling=vf.SamplingConfig(max_tokens=40),
        max_turns=1,
    )
    task = Talk(vf.TaskData(idx=0, name="talk", prompt=QUESTION))
    async with vf.Agent(config) as agent:
        return await agent.run(task)


trace = asyncio.run(play())
if trace.errors:
    raise SystemExit(str(trace.errors))
print(json.dumps({"answer": trace.last_reply, "reward": trace.reward, "metrics": {"cut": 0}}))
