"""Closed word lists that fill the slots of prompts.

Knows words only. Every list is free of duplicates; names never occur among the nouns.
"""

from __future__ import annotations


def listed(words: str) -> tuple[str, ...]:
    """The words of a text, as a constant list."""
    return tuple(words.split())


WOMEN = listed(
    "Ada Alice Amy Anna Bella Carla Chloe Clara Diana Elena Ella Emma Eva Fiona Grace Hannah Ida "
    "Irene Iris Jane Julia Kara Laura Lena Lily Lucy Maria Marta Mia Mila Nadia Nina Nora Olga "
    "Paula Petra Rita Rosa Ruth Sara Selma Susan Stella Tara Tina Vera Wanda Yara Zara Zoe"
)
MEN = listed(
    "Adam Alan Ben Boris Bruno Carl Colin David Dino Emil Eric Felix Finn Frank Fred George Hugo "
    "Ivan Jack James Jan Joel John Jonas Karl Kevin Leo Liam Louis Luca Mark Max Milo Nico Noah "
    "Oliver Omar Oscar Otto Paul Peter Ralf Robin Sam Simon Theo Tim Tom Victor Walter"
)
NAMES = WOMEN + MEN

SURNAMES = listed(
    "Adler Baker Berg Bell Brown Carter Clark Cook Cole Davis Diaz Evans Fischer Ford Garcia "
    "Gray Green Hall Hill Jones Keller King Klein Lang Lee Lopez Martin Meyer Moore Novak Parker "
    "Perez Price Reed Rossi Scott Silva Smith Stone Turner Vogel Wagner Walsh Ward Weber White "
    "Wolf Wood Wright Young"
)

CITIES = listed(
    "Athens Berlin Bern Bonn Boston Bremen Cairo Chicago Cork Delhi Denver Dublin Geneva Genoa "
    "Graz Hamburg Helsinki Kiel Kyoto Leeds Lima Lisbon London Lyon Madrid Malmo Manila Milan "
    "Munich Nairobi Naples Nice Osaka Oslo Paris Perth Porto Prague Riga Rome Seoul Seville Sofia "
    "Sydney Tallinn Tokyo Turin Vienna Warsaw Zurich"
)

ITEMS = listed(
    "apples balls beads books bottles boxes buttons cakes candles cards chairs coins cookies cups "
    "eggs flowers forks glasses hats jars keys lamps lemons marbles masks melons mugs nails notes "
    "nuts onions oranges pears pencils pens plants plates plums pots ribbons rings roses shells "
    "shirts socks spoons stamps stickers stones tickets toys"
)

# Nouns for word lists: lower case, no plural, many initials.
NOUNS = listed(
    "acorn anchor apple apron arrow autumn badge bamboo banana barrel basket beach bell bird "
    "blanket boat bottle branch bread bridge brush bucket butter button cabin cactus camel candle "
    "canyon carpet castle cat chair cherry circle cloud coffee comet copper corn cotton crab "
    "crown cup daisy desert desk diamond dog dolphin donkey door dragon drum duck eagle earth "
    "echo elbow engine falcon farm feather fence fire fish flag flower flute forest fork fox "
    "frog garden garlic ghost giraffe glass glove goat gold grape guitar hammer harbor harp hat "
    "hill honey horse house ice igloo ink iron island ivory jacket jar jewel juice jungle kettle "
    "key king kite kitten knife ladder lake lamp leaf lemon letter lion lizard llama magnet "
    "mango maple market meadow melon mirror monkey moon mouse mug needle nest night noodle north "
    "nut oak ocean olive onion orange orbit otter owl paddle paint panda paper parrot peach pear "
    "pencil pepper piano pillow planet plum pocket potato pumpkin puzzle queen quilt rabbit radio "
    "rain raven ribbon rice ring river robot rocket rose ruby saddle salt sand school shadow "
    "sheep ship shoe silver sky snow soap sock spider spoon star stone storm sugar sun swan "
    "table teapot tiger toast tomato tower train tree tulip tunnel turtle umbrella uncle valley "
    "vase velvet village violin wagon walnut water whale wheat wheel window winter wolf wood yard "
    "yarn zebra zipper"
)

HOBBIES = listed(
    "baking boxing camping chess climbing cooking cycling dancing drawing fishing football "
    "gardening golf hiking hockey judo knitting music painting poetry pottery reading rowing "
    "running sailing singing skating skiing surfing swimming tennis yoga"
)

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def article(noun: str) -> str:
    """The noun with `a` or `an` before it (by its first letter; the lists hold no exceptions)."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
