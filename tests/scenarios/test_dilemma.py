from pettingzoo.test import parallel_api_test, parallel_seed_test

from plugrl.scenarios.pettingzoo.dilemma import IteratedDilemma


def test_it_keeps_the_interface():
    parallel_api_test(IteratedDilemma(rounds=7), num_cycles=50)
    parallel_seed_test(IteratedDilemma)


def test_each_sees_what_both_did_from_its_own_side():
    game = IteratedDilemma(rounds=5)
    seen, _ = game.reset()
    assert [seen[agent].argmax() for agent in game.agents] == [0, 0]
    # What first and second do, earn and see then.
    for (first, second), earned, places in [
        ((0, 0), (-1, -1), (1, 1)),
        ((0, 1), (-3, 0), (2, 3)),
        ((1, 0), (0, -3), (3, 2)),
        ((1, 1), (-2, -2), (4, 4)),
    ]:
        seen, rewards, ended, cut, _ = game.step({"first": first, "second": second})
        assert (rewards["first"], rewards["second"]) == earned
        assert (seen["first"].argmax(), seen["second"].argmax()) == places
        assert seen["first"].sum() == 1
        assert not any(ended.values())
        assert not any(cut.values())
    _, _, ended, cut, _ = game.step({"first": 0, "second": 0})
    assert all(cut.values())
    assert not any(ended.values())
    assert game.agents == []
