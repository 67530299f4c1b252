"""Products of the inverse of a matrix that is known by its own products with vectors.

A follower that has answered its leader rests where its gradient is 0. How its parameters move with
those of the leader takes the inverse of its Hessian, which is never written down for networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from plugrl.core.errors import ConfigError

#: Maps a vector ``[P]`` to its product with the matrix ``[P, P]``.
Product = Callable[[torch.Tensor], torch.Tensor]
IhvpVariant = Literal["exact", "nystrom", "conjugate_gradient", "neumann"]
#: Those that need a symmetric matrix.
SYMMETRIC: tuple[IhvpVariant, ...] = ("nystrom", "conjugate_gradient")
#: The most parameters for which the matrix is written down.
LARGEST_EXACT = 4096


def exact(product: Product, vector: torch.Tensor, rho: float) -> torch.Tensor:
    """``(H + rho I)^-1 vector`` by P products and a solution in float64.

    Raises:
        ConfigError: there are more parameters than that is meant for.
    """
    count = len(vector)
    if count > LARGEST_EXACT:
        raise ConfigError(
            f"spg.ihvp_variant exact is for followers of at most {LARGEST_EXACT} parameters, not "
            f"{count}; take nystrom, conjugate_gradient or neumann"
        )
    identity = torch.eye(count, dtype=vector.dtype, device=vector.device)
    matrix = torch.stack([product(column) for column in identity], 1).double()
    matrix += rho * identity.double()
    solution: torch.Tensor = torch.linalg.solve(matrix, vector.double())
    return solution.to(vector.dtype)


def nystrom(
    product: Product,
    vector: torch.Tensor,
    rho: float,
    rank: int,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """``(M + rho I)^-1 vector``, where M is H as far as ``rank`` of its rows tell.

    With C these rows and W the part of H in them, M is C' W^-1 C without what curves downwards: a
    follower at its best response has no such curvature, and what an estimate has of it would make
    the inverse as large as can be. Of a matrix of that rank that curves upwards, or with ``rank``
    at least P, it is the exact product.

    Source: Hataya and Yamada, arXiv 2302.09726, equation 6.

    Args:
        product: with H, which is symmetric.
        vector: ``[P]``.
        rho: more than 0.
        rank: how many rows are taken.
        generator: of the choice of rows.
    """
    count = len(vector)
    chosen = torch.randperm(count, generator=generator)[: min(rank, count)].to(vector.device)
    units = torch.zeros(len(chosen), count, dtype=vector.dtype, device=vector.device)
    units[torch.arange(len(chosen)), chosen] = 1
    rows = torch.stack([product(unit) for unit in units]).double()
    core = (rows[:, chosen] + rows[:, chosen].T) / 2
    basis, factor = torch.linalg.qr(rows.T)
    # Rows that say the same, or nothing, leave the core singular.
    small = factor @ torch.linalg.pinv(core, hermitian=True) @ factor.T
    curvature, directions = torch.linalg.eigh((small + small.T) / 2)
    weights = 1 / (curvature.clamp_min(0) + rho) - 1 / rho
    along = basis @ directions
    solution: torch.Tensor = vector.double() / rho + along @ (weights * (along.T @ vector.double()))
    return solution.to(vector.dtype)


def conjugate_gradient(
    product: Product, vector: torch.Tensor, rho: float, iterations: int
) -> torch.Tensor:
    """``(H + rho I)^-1 vector`` by conjugate gradients, for a symmetric H.

    It ends early where the residual vanishes, and where it meets a direction in which H + rho I
    does not curve upwards: what was found until then is the answer.
    """
    solution = torch.zeros_like(vector)
    residual = vector.clone()
    direction = residual.clone()
    square = residual.dot(residual)
    first = float(square)
    for _ in range(iterations):
        if float(square) <= torch.finfo(vector.dtype).eps ** 2 * first:
            break
        mapped = product(direction) + rho * direction
        curvature = direction.dot(mapped)
        if float(curvature) <= 0:
            break
        step = square / curvature
        solution += step * direction
        residual -= step * mapped
        following = residual.dot(residual)
        direction = residual + (following / square) * direction
        square = following
    return solution


def neumann(product: Product, vector: torch.Tensor, rho: float, iterations: int) -> torch.Tensor:
    """``(H + rho I)^-1 vector`` by the first terms of ``s sum_k (I - s (H + rho I))^k vector``.

    The step s is 1 over an estimate of the largest stretch of H + rho I, so that the terms of a
    positive definite matrix fall.

    Source: Lorraine et al., arXiv 1911.02590, algorithm 3.
    """
    probe = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    stretch = 0.0
    for _ in range(_PROBES):
        mapped = product(probe) + rho * probe
        norm = float(mapped.norm())
        stretch = max(stretch, norm)
        if norm == 0:
            break
        probe = mapped / norm
    if stretch == 0:
        return vector.clone()
    step = 1 / stretch
    term, total = vector, vector.clone()
    for _ in range(iterations):
        term = term - step * (product(term) + rho * term)
        total = total + term
    return step * total


#: Products by which the stretch is estimated.
_PROBES = 5
