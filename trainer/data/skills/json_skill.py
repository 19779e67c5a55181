"""Skill `json`: a JSON object from a sentence, with nested objects, arrays, numbers and booleans.

Knows record kinds: how a record is told in a sentence and which JSON it is. A prompt may ask for a
few of the keys only, in its own order. Answers are JSON alone, indented by two spaces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from trainer.data.skills.base import Draft, Skill, Task, number, pick
from trainer.data.skills.words import (
    CITIES,
    HOBBIES,
    ITEMS,
    MONTHS,
    NAMES,
    NOUNS,
    SURNAMES,
    WEEKDAYS,
    article,
    listed,
)

Record = tuple[str, dict[str, Any]]

COLORS = listed("black blue brown gold gray green orange pink purple red silver white yellow")
PETS = listed("cat dog fish goat hamster horse parrot pony rabbit snake turtle")
JOBS = listed(
    "actor artist baker barber carpenter chef clerk coach dentist doctor driver engineer farmer "
    "gardener judge lawyer librarian mechanic nurse painter pilot plumber singer tailor teacher "
    "waiter writer"
)
EVENTS = listed("concert exam fair lecture match meeting party race show workshop")
SKIES = listed("clear cloudy foggy rainy snowy stormy sunny windy")


def _clock(rng: random.Random) -> str:
    return f"{number(rng, 7, 22):02d}:{pick(rng, (0, 15, 30, 45)):02d}"


def _person(rng: random.Random) -> Record:
    name, job, city = pick(rng, NAMES), pick(rng, JOBS), pick(rng, CITIES)
    age = number(rng, 18, 79)
    likes = rng.sample(HOBBIES, 2)
    text = (
        f"{name} is {age} years old, works as {article(job)} in {city} and likes {likes[0]} and "
        f"{likes[1]}."
    )
    return text, {"name": name, "age": age, "job": job, "city": city, "likes": likes}


def _order(rng: random.Random) -> Record:
    name = f"{pick(rng, NAMES)} {pick(rng, SURNAMES)}"
    one, two = rng.sample(ITEMS, 2)
    a, b, total = number(rng, 2, 20), number(rng, 2, 20), number(rng, 10, 300)
    paid = rng.random() < 0.5
    text = (
        f"{name} orders {a} {one} and {b} {two} for {total} euros and has "
        f"{'already paid' if paid else 'not paid yet'}."
    )
    items = [{"item": one, "count": a}, {"item": two, "count": b}]
    return text, {"customer": name, "items": items, "total": total, "paid": paid}


def _event(rng: random.Random) -> Record:
    event, city, weekday = pick(rng, EVENTS), pick(rng, CITIES), pick(rng, WEEKDAYS)
    day, month, time = number(rng, 1, 28), pick(rng, MONTHS), _clock(rng)
    guests = number(rng, 5, 500)
    text = f"The {event} in {city} is on {weekday}, {day} {month}, at {time}, with {guests} guests."
    date = {"weekday": weekday, "day": day, "month": month}
    return text, {"event": event, "city": city, "date": date, "time": time, "guests": guests}


def _pet(rng: random.Random) -> Record:
    owner, pet = rng.sample(NAMES, 2)
    kind, color, age = pick(rng, PETS), pick(rng, COLORS), number(rng, 2, 19)
    text = f"{owner} has {article(color)} {kind} called {pet} that is {age} years old."
    return text, {"owner": owner, "pet": {"name": pet, "kind": kind, "color": color, "age": age}}


def _weather(rng: random.Random) -> Record:
    city, weekday, sky = pick(rng, CITIES), pick(rng, WEEKDAYS), pick(rng, SKIES)
    low = number(rng, -9, 20)
    high = low + number(rng, 2, 12)
    wind = number(rng, 2, 60)
    text = (
        f"On {weekday} it is {sky} in {city}, between {low} and {high} degrees, with wind of "
        f"{wind} km/h."
    )
    degrees = {"min": low, "max": high}
    return text, {"city": city, "day": weekday, "sky": sky, "degrees": degrees, "wind": wind}


def _book(rng: random.Random) -> Record:
    one, two = rng.sample(NOUNS, 2)
    author = f"{pick(rng, NAMES)} {pick(rng, SURNAMES)}"
    year, pages = number(rng, 1900, 2024), number(rng, 60, 900)
    lent = rng.random() < 0.5
    title = f"The {one} and the {two}"
    text = (
        f'"{title}" by {author} came out in {year}, has {pages} pages and is '
        f"{'lent out' if lent else 'on the shelf'}."
    )
    return text, {"title": title, "author": author, "year": year, "pages": pages, "lent": lent}


def _team(rng: random.Random) -> Record:
    city = pick(rng, CITIES)
    people = rng.sample(NAMES, 3)
    sport = pick(rng, ("football", "hockey", "tennis", "chess", "rowing", "judo"))
    wins, losses = number(rng, 0, 30), number(rng, 0, 30)
    text = (
        f"The {sport} team of {city} has the players {people[0]}, {people[1]} and {people[2]}, "
        f"with {wins} wins and {losses} losses."
    )
    score = {"wins": wins, "losses": losses}
    return text, {"sport": sport, "city": city, "players": people, "score": score}


def _product(rng: random.Random) -> Record:
    color, item = pick(rng, COLORS), pick(rng, NOUNS)
    euros, cents, stock = number(rng, 1, 99), number(rng, 10, 99), number(rng, 0, 200)
    if cents % 10 == 0:
        cents += 5
    sizes = rng.sample(("small", "medium", "large", "giant"), 2)
    text = (
        f"The shop sells {article(color)} {item} for {euros}.{cents} euros in the sizes {sizes[0]} "
        f"and {sizes[1]}; there are {stock} in stock."
    )
    price = float(f"{euros}.{cents}")
    return text, {"item": item, "color": color, "price": price, "sizes": sizes, "stock": stock}


def _named(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}"


def _drawn(make: Callable[[random.Random], Record]) -> Callable[[random.Random], Draft]:
    """The draw function of a record kind: all keys (named or not), or some of them in any order."""

    def draw(rng: random.Random) -> Draft:
        text, record = make(rng)
        keys = list(record)
        roll = rng.random()
        if roll < 0.3 and len(keys) > 2:
            keys = rng.sample(keys, number(rng, 2, len(keys) - 1))
        asked = "" if roll > 0.7 else f" with the keys {_named(keys)}"
        chosen = {key: record[key] for key in keys}

        def solve() -> tuple[str, dict[str, Any]]:
            return json.dumps(chosen, indent=2), {"kind": "json", "value": chosen}

        return Draft({"text": text, "keys": asked}, solve)

    return draw


PHRASINGS = (
    "Turn this into JSON{keys}: {text}",
    "Write this as JSON{keys}. {text}",
    "{text} Give me JSON{keys}.",
    "Make a JSON object{keys} from the sentence: {text}",
)
HELDOUT = ("Extract the data in JSON format{keys}: {text}",)

_PEOPLE = len(NAMES) * len(SURNAMES)

JSON = Skill(
    "json",
    (
        Task("person", _drawn(_person), PHRASINGS, HELDOUT, len(NAMES) * 62 * len(CITIES), 1.2),
        Task("order", _drawn(_order), PHRASINGS, HELDOUT, _PEOPLE * 19 * 19, 1.2),
        Task("event", _drawn(_event), PHRASINGS, HELDOUT, len(CITIES) * 28 * 12 * 496),
        Task("pet", _drawn(_pet), PHRASINGS, HELDOUT, len(NAMES) * 99 * 18 * len(PETS)),
        Task("weather", _drawn(_weather), PHRASINGS, HELDOUT, len(CITIES) * 30 * 11 * 59),
        Task("book", _drawn(_book), PHRASINGS, HELDOUT, _PEOPLE * 125),
        Task("team", _drawn(_team), PHRASINGS, HELDOUT, len(CITIES) * 31 * 31 * 100),
        Task("product", _drawn(_product), PHRASINGS, HELDOUT, len(NOUNS) * 99 * 201),
    ),
    weight=0.7,
)
