"""The protocol ``multi_channel`` in text: several speak in a round, one in two channels."""

import asyncio

SEES = {
    "prover0": {"main", "prover0_verifier", "prover_chat"},
    "prover1": {"main", "prover_chat"},
    "prover2": {"main", "prover_chat"},
    "verifier": {"main", "prover0_verifier"},
}
#: What each says in its turns of a cycle of three rounds.
TURNS = {
    "prover0": ["<prover0 prover_chat>", "<prover0 prover0_verifier>"],
    "prover1": ["<prover1 main>", "<prover1 prover_chat>"],
    "prover2": ["<prover2 main>", "<prover2 prover_chat>"],
    "verifier": [
        "To main: <verifier main>\nTo prover0_verifier: <verifier prover0_verifier>",
    ],
}


def test_agents_hear_the_channels_that_they_see_and_no_others(begin):
    episode, table, _ = begin(
        {agent: turns * 4 for agent, turns in TURNS.items()},
        protocol="multi_channel",
        model="verifier",
        agents={agent: {"model": agent} for agent in TURNS},
    )
    asyncio.run(episode.play())
    assert len(episode.rounds) == 8
    for agent, sees in SEES.items():
        last = [prompt for model, prompt in table.asked if model == agent][-1]
        heard = {
            (speaker, channel)
            for speaker in SEES
            for channel in SEES["prover0"]
            if f"<{speaker} {channel}>" in last
        }
        said = {
            ("prover0", "prover_chat"),
            ("prover0", "prover0_verifier"),
            ("prover1", "main"),
            ("prover1", "prover_chat"),
            ("prover2", "main"),
            ("prover2", "prover_chat"),
            ("verifier", "main"),
            ("verifier", "prover0_verifier"),
        }
        assert heard == {(speaker, channel) for speaker, channel in said if channel in sees}, agent
