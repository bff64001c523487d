"""Data sets `domainnet` and `domainnet10`: 345 classes, or ten of them, in six styles.

| | |
|---|---|
| source | Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019 |
| domains | clipart, infograph, painting, quickdraw, real, sketch |
| classes of `domainnet` | 345, see :data:`CLASSES` (labels 0 to 344) |
| classes of `domainnet10` | bird, feather, headphones, ice_cream, teapot, tiger, whale, windmill, wine_glass, zebra (labels 0 to 9; FedBN's) |
| published counts (train, test) | 33,525 and 14,604 clipart; 36,023 and 15,582 infograph; 50,416 and 21,850 painting; 120,750 and 51,750 quickdraw; 120,906 and 52,041 real; 48,212 and 20,916 sketch |
| split | the official lists (70 % and 30 %) |
| licence | none; fair use for non-commercial research, as its authors state |

| layout under data-dir | content |
|---|---|
| `[domainnet/]<domain>/<class>/*` | image files |
| `[domainnet/][splits/]<domain>_{train,test}.txt` | the official lists, lines `<domain>/<class>/<file> <number>` |

The lists may also be in `txt/` or `lists/`; letter case of these folders does not matter. A label is
the place of the class folder's name in the class list; the numbers of a list must belong to the names
one to one. A class without an image in a list (painting has such) is no error in `domainnet`.

FedBN's own split of its ten classes (80 % and 20 %: quickdraw has 1,000 test images, not 1,500)
comes as pickles, which are never read; `domainnet10` is split as `domainnet` is.
"""  # noqa: E501

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import Dataset, Source, Split
from fedshift_datasets.io import presence, trees
from fedshift_datasets.listing import Files, Listing

NAME, NAME10 = "domainnet", "domainnet10"
TITLE = "DomainNet: clipart, infographics, paintings, quick drawings, photos and sketches, 345 classes"
TITLE10 = "DomainNet, FedBN's ten classes of it"
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_NAMES = """
    aircraft_carrier airplane alarm_clock ambulance angel animal_migration ant anvil apple arm asparagus axe backpack
    banana bandage barn baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench
    bicycle binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain bread
    bridge broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar camel camera camouflage
    campfire candle cannon canoe car carrot castle cat ceiling_fan cello cell_phone chair chandelier church circle
    clarinet clock cloud coffee_cup compass computer cookie cooler couch cow crab crayon crocodile crown cruise_ship
    cup diamond dishwasher diving_board dog dolphin donut door dragon dresser drill drums duck dumbbell ear elbow
    elephant envelope eraser eye eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish
    flamingo flashlight flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose
    giraffe goatee golf_club grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter helmet
    hexagon hockey_puck hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass house house_plant
    hurricane ice_cream jacket jail kangaroo key keyboard knee knife ladder lantern laptop leaf leg light_bulb lighter
    lighthouse lightning line lion lipstick lobster lollipop mailbox map marker matches megaphone mermaid microphone
    microwave monkey moon mosquito motorbike mountain mouse moustache mouth mug mushroom nail necklace nose ocean
    octagon octopus onion oven owl paintbrush paint_can palm_tree panda pants paper_clip parachute parrot passport
    peanut pear peas pencil penguin piano pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond
    pool popsicle postcard potato power_outlet purse rabbit raccoon radio rain rainbow rake remote_control rhinoceros
    rifle river roller_coaster rollerskates sailboat sandwich saw saxophone school_bus scissors scorpion screwdriver
    sea_turtle see_saw shark sheep shoe shorts shovel sink skateboard skull skyscraper sleeping_bag smiley_face snail
    snake snorkel snowflake snowman soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel
    stairs star steak stereo stethoscope stitches stop_sign stove strawberry streetlight string_bean submarine
    suitcase sun swan sweater swing_set sword syringe table teapot teddy-bear telephone television tennis_racquet tent
    The_Eiffel_Tower The_Great_Wall_of_China The_Mona_Lisa tiger toaster toe toilet tooth toothbrush toothpaste
    tornado tractor traffic_light train tree triangle trombone truck trumpet t-shirt umbrella underwear van vase
    violin washing_machine watermelon waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga zebra
    zigzag
"""
#: All classes, sorted by name without regard to case and punctuation.
CLASSES = tuple(_NAMES.split())
CLASSES10 = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
#: Published number of images by domain.
COUNTS = {"clipart": 48129, "infograph": 51605, "painting": 72266, "quickdraw": 172500, "real": 172947, "sketch": 69128}
#: Of the ten classes only quickdraw's number is known without the lists: it has 500 images of every class.
COUNTS10 = {"quickdraw": 5000}

_TOPS, _LISTS = ("domainnet",), ("splits", "txt", "lists")
_LAYOUTS = "[domainnet/][splits/]<domain>_{split}.txt with [domainnet/]<domain>/<class>/"


def find(domain: str, split: Split, source: Source) -> Listing:
    """List one domain and split of DomainNet, in the order of its official list.

    Args:
        domain: One of :data:`DOMAINS`.
        split: Which split.
        source: Where the lists and images are.

    Raises:
        DataError: If the domain is unknown or absent, its list is wrong, or an image of it is not there.
    """
    return _find(NAME, CLASSES, domain, split, source)


def find10(domain: str, split: Split, source: Source) -> Listing:
    """List one domain and split of FedBN's ten classes; see :func:`find`.

    Raises:
        DataError: As in :func:`find`, or if one of the ten classes has no image in the list.
    """
    listing = _find(NAME10, CLASSES10, domain, split, source)
    if empty := trees.lacking(listing.labels, CLASSES10):
        raise DataError(
            f"{domain} {split} of {NAME10} has {plural(10 - len(empty), 'class', 'classes')}, not 10; none of "
            f"{', '.join(empty)}"
        )
    return listing


def _find(dataset: str, classes: tuple[str, ...], domain: str, split: Split, source: Source) -> Listing:
    def list_of(root: Path, domain: str) -> Path | None:
        return trees.first_file(root, (_TOPS, _LISTS), (f"{domain}_{split}.txt",))

    layouts = _LAYOUTS.replace("{split}", split)
    path = trees.locate(dataset, domain, source, domains=DOMAINS, finder=list_of, layouts=layouts)
    assert source.data_dir is not None  # locate has seen to it
    bases = trees.places(source.data_dir.absolute(), _TOPS)
    folder = next((base / domain for base in bases if (base / domain).is_dir()), None)
    if folder is None:
        raise DataError(f"{shown(path)} is there, but not the images {domain}/<class>/ that it names")
    label_of = {name: label for label, name in enumerate(classes)}
    wanted = [(name, file) for name, file in _entries(path, domain) if name in label_of]
    if not wanted:
        raise DataError(f"{shown(path)}: no images found; expected lines <domain>/<class>/<file> <number>")
    _check_there(path, folder, wanted)
    items = Files(str(folder / name / file) for name, file in wanted)
    return Listing(items, np.array([label_of[name] for name, _ in wanted], np.int64))


def _entries(path: Path, domain: str) -> Iterator[tuple[str, str]]:
    """Yield class and file name of every line of a list.

    Raises:
        DataError: If a line is no such line, or names and numbers of the classes are not one to one.
    """
    with presence.reading(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    names: dict[str, str] = {}  # by number
    numbers: dict[str, str] = {}  # by name
    for at, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place, _, number = line.rstrip().rpartition(" ")
        parts = place.split("/")
        if len(parts) != 3 or parts[0] != domain or not number.isdecimal():
            raise DataError(f"{shown(path)}: line {at} is {line[:100]!r}; expected {domain}/<class>/<file> <number>")
        name = parts[1]
        if name not in _KNOWN:
            other = shown(name, MOST_NAME)
            raise DataError(
                f"{shown(path)}: line {at} is of the class {other}, which is none of DomainNet's {len(CLASSES)}"
            )
        before = names.setdefault(number, name), numbers.setdefault(name, number)
        if before != (name, number):
            had = f"{before[0]} had it" if before[0] != name else f"it had {shown(before[1], MOST_NAME)}"
            given = f"{name} the number {shown(number, MOST_NAME)}"
            raise DataError(f"{shown(path)}: line {at} gives {given}, but before {had}; allowed is one each")
        yield name, parts[2]


def _check_there(path: Path, folder: Path, wanted: list[tuple[str, str]]) -> None:
    """Raise a :class:`DataError` unless all files are there; one look per class folder, not one per file."""
    there: dict[str, set[str]] = {}
    with presence.reading(folder):
        for name in {name for name, _ in wanted}:
            sub = folder / name
            there[name] = set(os.listdir(sub)) if sub.is_dir() else set()  # noqa: PTH208 - names are all it takes
    absent = [folder / name / file for name, file in wanted if file not in there[name]]
    if absent:
        missing = f"{len(absent)} of {plural(len(wanted), 'image')} that it names are not there"
        raise DataError(f"{shown(path)}: {missing}, first {shown(absent[0])}")


_KNOWN = frozenset(CLASSES)

DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 64, find, COUNTS)
DATASET10 = Dataset(NAME10, TITLE10, DOMAINS, CLASSES10, 64, find10, COUNTS10)
