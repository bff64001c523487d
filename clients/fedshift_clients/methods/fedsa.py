"""FedSA client [Zhou et al., 2025].

Paper: "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated Learning", Yanbing
Zhou, Xiangmou Qu, Chenlong You, Jiyang Zhou, Jingyue Tang, Xin Zheng, Chunmao Cai, Yingbo Wu; AAAI 2025,
https://arxiv.org/abs/2501.05496. Reference code: lokinko/FedSA at commit 75bf106 (``flcore/clients/clientsa.py``).

Symbols: z features, a^k semantic anchor of class k, h the classifier, p_n^k the node's prototypes, delta the margin.

    L = CE + lambda_cc mean_k CE(h(a^k), k) + lambda_r MSE(z, a^y) + lambda_m CE(-(||z - a^c|| + [c = y] delta)_c, y)

delta is the larger of the mean distance to the nearest other one among the anchors, and among the prototypes that the
node sent last (0 before, and where it holds one class).

Deviations: (1) prototypes are the trained model's, in evaluation mode (``proto_source``; the code averages over all
local epochs while it trains); (2) classification is by the head, the code's by the nearest global prototype
(``predict_by``); (3) weights may be averaged as well (``share_weights``), as later papers compare with it.
"""

import torch
from torch import Tensor

from fedshift_clients.losses import fedsa as terms_of_fedsa
from fedshift_clients.methods.own_models import OwnModelClient
from fedshift_clients.training.batches import Batch
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedsa import FedSAParams

GAP = "gap"  # in a node's memory: mean distance of its last prototypes to the nearest other, (1,), float32


class FedSAClient(OwnModelClient[FedSAParams]):
    """Cross-entropy and three terms of the semantic anchors; contributes class prototypes."""

    weighs_classes = True

    def start_round(self, server_round: int) -> None:
        """Read the anchors and find the margin."""
        self._anchors = self.tensor("anchors")  # C x D
        if self._anchors is not None:
            own = torch.tensor(float(self.memory[GAP][0]) if GAP in self.memory else 0.0, device=self._anchors.device)
            self._margin = torch.maximum(own, terms_of_fedsa.mean_gap(self._anchors))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the four terms, weighted; without anchors cross-entropy alone."""
        p, anchors = self.params, self._anchors
        features, logits = self.forward(batch.x)  # B x D, B x C
        self.gather(features, batch.y)
        terms = {"ce": self.cross_entropy(logits, batch.y)}
        if anchors is None:
            return terms
        if p.lambda_calibration > 0:
            terms["calibration"] = p.lambda_calibration * terms_of_fedsa.calibration(self.model.classifier, anchors)
        if p.lambda_anchor > 0:
            terms["anchor"] = p.lambda_anchor * terms_of_fedsa.anchor_distance(features, batch.y, anchors)
        if p.lambda_margin > 0:
            contrast = terms_of_fedsa.margin_contrast(features, batch.y, anchors, self._margin)
            terms["margin"] = p.lambda_margin * contrast
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of the node's features; remember how far apart they are."""
        sent = super().finish_round(server_round)
        if self.params.lambda_margin > 0:
            held = torch.from_numpy(sent["prototypes"][sent["counts"] > 0])
            self.memory[GAP] = terms_of_fedsa.mean_gap(held)[None].numpy()
        return sent
