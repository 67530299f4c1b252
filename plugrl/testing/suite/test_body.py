"""The contract of bodies.

Run it with ``--plugrl-body NAME``, or subclass :class:`BodyContract` with an attribute
``plugrl_body``. A body gives as ``conformance``: ``config``, its section; ``shape``, of the
observations that it takes; ``spaces``, a function that gives the spaces of an agent, for a body
that reads the named parts of an observation; and ``unfit``, a shape that it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import Body, seeded
from plugrl.testing.contract import ComponentContract, needed


class BodyContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_body``."""

    kind = "body"
    defaults: ClassVar[Mapping[str, Any]] = {"shape": (4,), "spaces": None, "unfit": None}

    @pytest.fixture
    def spaces(self, example: Mapping[str, Any]) -> Any:
        from gymnasium.spaces import Box, Discrete

        if example["spaces"] is not None:
            return example["spaces"]()
        box = Box(-1.0, 1.0, example["shape"], np.float32)
        return SimpleNamespace(observation=box, action=Discrete(2), layout=None, scripts={})

    @pytest.fixture
    def grow(self, make: Callable[[], Body], spaces: Any) -> Callable[..., tuple[nn.Module, int]]:
        """Builds the network, its weights drawn with a seed."""

        def grown(seed: int = 0) -> tuple[nn.Module, int]:
            with seeded("conformance", seed):
                return make().build_for(spaces, spaces.observation.shape)

        return grown

    @pytest.fixture
    def seen(self, spaces: Any) -> torch.Tensor:
        """Observations ``[6, *shape]``."""
        spaces.observation.seed(0)
        drawn = np.stack([spaces.observation.sample() for _ in range(6)])
        return torch.as_tensor(drawn, dtype=torch.float32)

    def test_it_gives_as_many_features_as_it_says(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        network, features = grow()
        assert isinstance(network, nn.Module)
        found = network(seen)
        assert found.shape == (6, features)
        assert found.dtype == torch.float32
        assert torch.isfinite(found).all()

    def test_any_number_of_leading_dimensions_may_come(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        network, features = grow()
        whole = network(seen)
        shape = seen.shape[1:]
        torch.testing.assert_close(network(seen[0]), whole[0])
        torch.testing.assert_close(
            network(seen.reshape(2, 3, *shape)), whole.reshape(2, 3, features)
        )

    def test_observations_do_not_mix(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        # What rolls out sees other batches than what learns: layers such as BatchNorm break that.
        network, _ = grow()
        whole = network.train()(seen)
        torch.testing.assert_close(network(seen[:1]), whole[:1], rtol=1e-4, atol=1e-5)

    def test_equal_observations_give_equal_features(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        network, _ = grow()
        assert torch.equal(network(seen), network(seen)), "it draws random numbers, as dropout does"

    def test_equal_seeds_draw_equal_weights(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        assert torch.equal(grow(1)[0](seen), grow(1)[0](seen))

    def test_everything_can_be_trained(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        network, _ = grow()
        (network(seen) ** 2).sum().backward()
        weights = dict(network.named_parameters())
        assert weights, "it has no weights; hold its layers as attributes of the network"
        assert [name for name, weight in weights.items() if weight.grad is None] == []

    def test_its_state_is_all_that_it_is(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        one, other = grow(1)[0], grow(2)[0]
        other.load_state_dict(one.state_dict())
        assert torch.equal(other(seen), one(seen))

    def test_it_leaves_observations_as_they_were(
        self, grow: Callable[..., tuple[nn.Module, int]], seen: torch.Tensor
    ) -> None:
        before = seen.clone()
        grow()[0](seen)
        assert torch.equal(seen, before)

    def test_what_does_not_fit_is_refused(
        self, make: Callable[[], Body], example: Mapping[str, Any]
    ) -> None:
        needed(example, "unfit")
        with pytest.raises(ConfigError):
            make().build(tuple(example["unfit"]))


class TestBody(BodyContract):
    """The contract for every ``--plugrl-body``."""

    __test__ = True
