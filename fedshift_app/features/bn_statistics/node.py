"""Scores with other statistics of BatchNorm, and sums behind re-estimated ones (``evaluate.bn``)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Place, Reply, Request
from fedshift_clients.training import statistics
from fedshift_clients.training.arrays import view
from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.features import ours
from fedshift_core.limits import largest
from fedshift_core.moments import power_of, standard
from fedshift_core.wire.names import (
    AVERAGED,
    BATCH,
    BN_IMAGES,
    BN_MEAN,
    BN_SCORE,
    BN_SQUARES,
    BN_SUM,
    BN_VAR,
    BN_WAYS,
    DOMAINS,
    DRAWN,
    OWN,
    RETAKEN,
    STARTS,
    STATISTICS,
    STOPS,
    TAKE_STATISTICS,
)
from fedshift_core.wire.rows import unlike
from fedshift_core.wire.scores import DomainScore

_BARE = f"without {BN_IMAGES}"
LEAST_STATISTICS = 2  # training images behind statistics that leave a node
_ASKED = {key.name for feature in ours() for key in feature.evaluate if not key.replaces_scores} - {BN_IMAGES}
_OF_SCORES = frozenset((DOMAINS, DRAWN, STARTS, STOPS, *_ASKED))


class BatchNormStatisticsOnNode(NodeFeature):
    """Scores with the statistics that a message names, and sends sums of training images where one asks for them."""

    place = Place.MODEL
    takes = (STATISTICS,)

    def refuse(self, request: Request) -> str:
        """Allow what ``evaluate.bn`` and ``evaluate.bn_images`` say, and expect it where test images are scored."""
        given, wanted = request.given, request.config.evaluate.bn
        alone = [name for name in wanted if name != RETAKEN] == [AVERAGED]
        if request.scores and BN_WAYS not in given and not alone:
            return request.but(DOMAINS, f"without {BN_WAYS}, where this run has evaluate.bn=[{','.join(wanted)}]")
        for key, rule in {TAKE_STATISTICS: _take_statistics, BN_WAYS: _bn_statistics, BN_IMAGES: _bn_images}.items():
            if why := request.but(key, rule(request)):
                return why
        scores = request.kind == "evaluate" and TAKE_STATISTICS not in given
        return "" if scores and RETAKEN in given.get(BN_WAYS, ()) else request.no_record(STATISTICS)

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Score with the statistics of the accuracy, and add the correct predictions with all others.

        A test set may be in the order of its classes: it is mixed where the statistics are those of each batch. Where
        the message asks for sums of training images, these are the answer.
        """
        client, options = call.client, call.options
        if options.get(TAKE_STATISTICS):
            return sums_of_images(call)
        if STATISTICS in call.records:
            client.statistics = checked(call.records[STATISTICS], client)
        first, *others = options.get(BN_WAYS, (AVERAGED,))
        with scored_with(client, first, options):
            reply = next(replace(call, mixed=call.mixed or first == BATCH))
        for name in others:
            with scored_with(client, name, options):
                for domain, test in client.tests(options, mixed=client.mixes_tests or name == BATCH):
                    reply.metrics[DomainScore.other_key(BN_SCORE + name, domain)] = client.score_test(test).correct
        return reply


def sums_of_images(call: Call) -> Reply:
    """Take BatchNorm's statistics of training images with the weights of a call.

    Args:
        call: Its options hold ``bn-images``, how many images are looked at at most.

    Returns:
        Sums and sums of squares by layer, (C,), float64 (:class:`fedshift_clients.training.statistics.Moments`), of the
        layers whose statistics travel, under their names on the wire; the number of images; and the means.

    Raises:
        RequestError: If they would be those of one image.
    """
    client, most = call.client, int(call.options[BN_IMAGES])
    least = max(LEAST_STATISTICS, client.setup.least_images)
    if min(len(client.train_set), most) < least:
        raise RequestError(f"refused: sums over fewer than {least} images, which could be those of a single one")
    moments, images = client.take_statistics(most)
    layers = [name for name in moments if f"{name}.{BN_MEAN}" in call.sent]
    sums: Arrays = {}
    for name in layers:
        sums[BN_SUM + name] = moments[name].sums.cpu().numpy()
        sums[BN_SQUARES + name] = moments[name].squares.cpu().numpy()
    means = standard({name: array / images for name, array in sums.items()}, layers, call.sent)
    return Reply(images, knowledge=sums, means=means, powers={name: power_of(name) for name in means})


def scored_with(client: DomainClient[Any], name: str, request: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Let the model be scored with statistics of ``evaluate.bn``."""
    client.other_weights()
    client.other_statistics()
    if name == AVERAGED:
        return nullcontext()
    if name == BATCH:
        return client.scoring_by_batch()
    if name == OWN:
        given = statistics.of_moments(*client.take_statistics(int(request[BN_IMAGES])))
    else:
        given = {name: view(array) for name, array in client.statistics.items()}
    return statistics.in_place(client.model, given)


def checked(arrays: Arrays, client: DomainClient[Any]) -> Arrays:
    """Return BatchNorm's statistics that the server re-estimated, checked.

    Raises:
        RequestError: If they are not those of the layers of the client's model, or a number is not what it may be.
    """
    state = client.model.state_dict()
    of_layers = {f"{name}.{key}" for name in statistics.layers(client.model) for key in (BN_MEAN, BN_VAR)}
    wanted = {name: (tuple(state[name].shape), np.float32) for name in of_layers.intersection(client.shared_names)}
    if why := unlike(arrays, wanted):
        raise RequestError(f"the server's statistics do not match this node's model: {why}")
    for name, array in arrays.items():
        if not np.isfinite(largest(array)) or (name.endswith(BN_VAR) and (array < 0).any()):
            raise RequestError(
                f"the server's statistics {name} hold numbers that are not finite, or negative variances"
            )
    return arrays


def _take_statistics(request: Request) -> str:
    wanted, others = request.config.evaluate.bn, sorted(request.given.keys() & _OF_SCORES)
    reasons = (
        "" if request.given.get(TAKE_STATISTICS) is True else "it is true or absent",
        request.private,
        "" if RETAKEN in wanted else f"this run has evaluate.bn=[{','.join(wanted)}]",
        f"then nothing is scored, and {others[0]} has no place" if others else "",
        "" if BN_IMAGES in request.given else _BARE,
        request.refuse_score(),
    )
    return next(filter(None, reasons), "")


def _bn_images(request: Request) -> str:
    most = request.config.evaluate.bn_images
    if not request.given.keys() & {TAKE_STATISTICS, BN_WAYS}:
        return f"without {BN_WAYS} and {TAKE_STATISTICS}"
    return "" if request.given.get(BN_IMAGES) == most else f"this run has evaluate.bn_images={most}"


def _bn_statistics(request: Request) -> str:
    wanted, asked = request.config.evaluate.bn, request.given.get(BN_WAYS)
    possible = (list(wanted), [name for name in wanted if name != RETAKEN])  # where no statistics travel
    if asked not in possible or not asked:
        return f"this run has evaluate.bn=[{','.join(wanted)}]"
    return "" if BN_IMAGES in request.given else _BARE
