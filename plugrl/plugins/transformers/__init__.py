"""Models of the ``transformers`` library, sampled from and trained in this process."""

from __future__ import annotations

import logging

# transformers imports torchao wherever it is installed. That says at each import which of its
# kernels do not fit this machine, and has torch say what torchao has to change.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
