"""FedProx's term and its gradient against loops."""

import pytest
from method_cases import check_term
from support import as64, drawn

from fedshift_clients.losses.proximal import proximal


@pytest.mark.parametrize("mu", [0.001, 1.0])
def test_the_term_and_its_gradient_of_all_weights_together(mu: float) -> None:
    w, other, received = drawn(0, 3, 2), drawn(1, 4), [drawn(2, 3, 2).requires_grad_(), drawn(3, 4)]
    apart = float(((as64(other) - as64(received[1])) ** 2).sum())
    check_term(
        lambda x: proximal([x, other], received, mu),
        lambda x: mu / 2 * (sum(float(d) ** 2 for d in (x - as64(received[0])).flat) + apart),
        w,
    )
    proximal([w.requires_grad_(), other], received, mu).backward()  # type: ignore[no-untyped-call]
    assert received[0].grad is None
