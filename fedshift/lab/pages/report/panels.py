"""Figures of the papers that show several pictures side by side, or one class after another."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from fedshift.lab.pages.report import grad_cam
from fedshift.lab.pages.report.analysis import Floats
from fedshift.lab.pages.report.features import Seen
from fedshift.lab.pages.report.maps import unnamed
from fedshift.lab.pages.report.same_images import Attended
from fedshift.run.html.drawing import (
    CLASSES,
    GRID,
    NAMED_DOMAINS,
    SHORT,
    TEXT,
    Drawing,
    canvas,
    class_colour,
    class_key,
    domain_marker,
    finish,
    legend_above,
    short,
    shown_rounds,
    titled,
)  # fmt: skip
from fedshift.run.html.pictures import scaled
from fedshift_core.plural import capital, plural

COLUMNS = 3  # largest number of panels in a line
NAMED_CLASSES = 20  # up to this number, each class has its name below its bar
HEADS = ("image", "f~ fused", "f+ robust", "f- related", "f* corrected")
PLAIN_HEADS = ("image", "Grad-CAM")
ROWS = 12  # largest number of domains whose images are drawn
PICTURES = 6  # largest number in a line


def one_node(
    placed: Floats, seen: Seen, domains: Sequence[str], classes: Sequence[str], who: str, home: str
) -> Drawing:
    """Draw t-SNE of one node's features, coloured by class; markers show the domain."""
    figure, (axes,) = canvas(4.4)
    for i, domain in enumerate(domains):
        of_domain = seen.domain_of == i
        colours = [class_colour(int(k), len(classes)) for k in seen.y[of_domain]]
        x, up = placed[of_domain].T
        axes.scatter(x, up, s=11, c=colours, marker=domain_marker(i), linewidths=0, alpha=0.85)
        if len(domains) <= NAMED_DOMAINS:
            axes.scatter([], [], s=22, color=TEXT, marker=domain_marker(i), label=domain)
    _class_legend(axes, seen, classes)
    _bare(axes)
    if len(classes) > CLASSES:
        class_key(figure, axes, classes)
    legend_above(figure, axes)
    title = (
        f"Features of {who} by t-SNE: {plural(len(seen.y), 'test image')} of {', '.join(domains)}, coloured by class."
    )
    caption = (
        f"{capital(who)}, which has images of {home} alone, right after one more local round, on all domains "
        f"(FedCode, figures 1a and 4): colour is the class, marker the domain.{_wheel(classes)}"
        f"{unnamed(len(domains)) if len(domains) > NAMED_DOMAINS else ''}"
    )
    return finish(figure, "tsne-node", title, caption)


def rounds(placed: Mapping[int, Floats], seen: Seen, domain: str, classes: Sequence[str]) -> Drawing:
    """Draw the features of the same images at several rounds, one panel each, coloured by class.

    Args:
        placed: Positions by round, (N, 2).
        seen: The images of ``domain`` at one of the rounds; the classes are the same at all rounds.
        domain: The domain of the images.
        classes: Names of all classes.
    """
    columns = min(COLUMNS, len(placed))
    lines = -(-len(placed) // columns)
    figure, panels = canvas(0.6 + 5.25 / columns * lines, lines, columns)
    colours = [class_colour(int(k), len(classes)) for k in seen.y]
    for axes, (server_round, points) in zip(panels, placed.items(), strict=False):
        x, up = points.T
        axes.scatter(x, up, s=8, c=colours, linewidths=0, alpha=0.85)
        axes.set_title(f"round {server_round}", loc="left")
    for axes in panels:
        _bare(axes)
    _class_legend(panels[0], seen, classes)
    if len(classes) <= CLASSES:
        legend_above(figure, panels[0])
    else:
        class_key(figure, panels, classes)
    numbers = ", ".join(map(str, placed))
    title = (
        f"Features over the rounds {numbers} by t-SNE: {plural(len(seen.y), 'test image')} of {domain}, "
        "coloured by class."
    )
    caption = (
        f"The global model's features of the same {plural(len(seen.y), 'test image')} of {domain} after the "
        f"rounds whose checkpoints are kept (FedSeProto, figure 2), coloured by class.{_wheel(classes)}"
    )
    return finish(figure, "tsne-rounds", title, caption)


def variance_by_class(variance: Floats, classes: Sequence[str]) -> Drawing:
    """Draw the variance over domains of each class's prototypes, (C,), and the mean; NaN has no bar."""
    figure, (axes,) = canvas(2.8)
    places = np.arange(len(classes))
    mean = float(np.nanmean(variance))
    colours = [class_colour(k, len(classes)) for k in range(len(classes))]
    axes.bar(places, np.nan_to_num(variance), color=colours, width=0.7)
    axes.axhline(mean, color=TEXT, linestyle="--", linewidth=1.2)
    axes.text(1.0, mean, f" {mean:.3f}", va="center", transform=axes.get_yaxis_transform())
    if len(classes) <= NAMED_CLASSES:
        names = [short(name) for name in classes]
        axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0)
    else:
        axes.set_xticks([])
    axes.set_ylabel("variance")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    worst = classes[int(np.nanargmax(variance))]
    title = f"Variance of each class's prototypes over domains: on average {mean:.3f}, largest for {worst}."
    caption = (
        "Variance over domains of each class's prototypes (I2PFL, figures 1 and 3): here the mean features of each "
        f"domain's test images, scaled to length 1; 0: all domains agree. Dashed: the mean, {mean:.3f}."
    )
    return finish(figure, "variance-class", title, caption)


def variance_by_round(means: Mapping[int, float], classes: Mapping[int, Floats]) -> Drawing:
    """Draw the mean variance of prototypes over domains by round, with the range over classes."""
    figure, (axes,) = canvas(2.4)
    at = list(means)
    least, most = ([float(pick(variance)) for variance in classes.values()] for pick in (np.nanmin, np.nanmax))
    axes.fill_between(at, least, most, color=GRID, alpha=0.3, linewidth=0)
    axes.plot(at, list(means.values()), color=TEXT, marker="o")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("variance")
    axes.grid(axis="y")
    shown_rounds(axes, at[-1])
    text = ", ".join(f"round {n} {value:.3f}" for n, value in means.items())
    title = f"Mean variance of the prototypes over domains: {text}."
    caption = (
        f"The same variance by the global model after the rounds whose checkpoints are kept ({text}): the mean over "
        "the classes, the band from the least to the largest of them."
    )
    return finish(figure, "variance-round", title, caption)


def same_images(examples: Sequence[Attended], classes: Sequence[str], who: str) -> Drawing:
    """Draw an image of each class and domain with its Grad-CAM; each domain has a row.

    Args:
        examples: An image of each class and domain, class by class.
        classes: Names of all classes.
        who: The name of the model.
    """
    split = bool(examples[0].peaks)
    heads = HEADS if split else PLAIN_HEADS
    shown = list(dict.fromkeys(example.true for example in examples))
    all_domains = list(dict.fromkeys(example.domain for example in examples))
    domains = all_domains[:ROWS]
    examples = [example for example in examples if example.domain in domains]
    across = min(max(1, PICTURES // len(heads)), len(shown))  # classes side by side
    rows, columns = len(domains) * -(-len(shown) // across), across * len(heads)
    figure, panels = canvas((0.25 + 1.02 * rows) * len(HEADS) / columns, rows, columns)
    for axes in panels:
        _bare(axes)
    for example in examples:
        above, column = divmod(shown.index(example.true), across)
        row, first = above * len(domains) + domains.index(example.domain), column * len(heads)
        cells = panels[row * columns + first :][: len(heads)]
        pictures = [example.image, *(grad_cam.under(example.image, heat) for heat in example.heats)]
        for axes, picture in zip(cells, pictures, strict=True):
            axes.imshow(scaled(picture), interpolation="nearest")
        right = example.predicted == example.true
        cells[0].set_xlabel("recognised" if right else f"as {short(classes[example.predicted])}", fontsize=8)
        for axes, peak in zip(cells[1:], example.peaks, strict=False):
            axes.set_xlabel("none" if np.isnan(peak) else f"{peak:.2f}", fontsize=8)
        if first == 0:
            cells[0].set_ylabel(titled(example.domain, SHORT), fontsize=9)
        if example.domain == domains[0]:
            for axes, head in zip(cells, (short(classes[example.true]), *heads[1:]), strict=True):
                axes.set_title(head, loc="center", fontsize=9)
    named = ", ".join(classes[k] for k in shown)
    right_ones = sum(example.predicted == example.true for example in examples)
    title = (
        f"Grad-CAM by {who} of the first test images of the classes {named} in the domains {', '.join(domains)}: "
        f"{right_ones} of {len(examples)} are recognised."
    )
    caption = (
        f"The first test image of each of the classes {named} in each domain, and what speaks for its class (red) by "
        f"{who} (F2DC, figure 2). Seed and domain alone choose the images: the reports of other methods show the same."
    )
    if split:
        caption += (
            " Of F2DC's modules in the fused map f~ = f+ + f*, in the robust f+, in the domain-related f- and in its "
            "correction f*. Each map is drawn on its own scale; the numbers are its highest value, f~'s being 1 "
            "(none: nothing in f~ speaks for the class)."
        )
    if left := len(all_domains) - len(domains):
        caption += f" Not drawn: {plural(left, 'more domain')}."
    return finish(figure, "same-images", title, caption)


def _class_legend(axes: Axes, seen: Seen, classes: Sequence[str]) -> None:
    if len(classes) <= CLASSES:
        for k in sorted(set(seen.y.tolist())):
            axes.scatter([], [], color=class_colour(k, len(classes)), marker="o", s=22, label=short(classes[k]))


def _wheel(classes: Sequence[str]) -> str:
    return " The colour wheel stands for the classes." if len(classes) > CLASSES else ""


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
