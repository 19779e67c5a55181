"""The sentences short stories are made of, and which constraint picks each.

A sentence is a format string over `name`, `animal`, `place`, `object`, `friend`, `she`, `her` and
`a_animal`, `a_object` (with their articles). Each choice is a function of one constraint, so that a
story follows from its prompt. Used by the generator and by the verifier.
"""

from __future__ import annotations

# place -> the preposition it takes, a sentence about it
PLACES: dict[str, tuple[str, str]] = {
    "forest": ("in", "The trees were tall and the air smelled of pine."),
    "garden": ("in", "The roses were open and the bees were busy."),
    "desert": ("in", "The sand was hot and the sky was wide."),
    "market": ("at", "The stalls were full and the people were loud."),
    "harbor": ("at", "The boats were rocking and the gulls were calling."),
    "castle": ("in", "The walls were old and the halls were empty."),
    "library": ("in", "The shelves were high and the rooms were silent."),
    "village": ("in", "The streets were narrow and the doors were open."),
    "beach": ("on", "The waves were small and the shells were shining."),
    "island": ("on", "The palms were bending and the water was blue."),
    "mountain": ("on", "The path was steep and the wind was cold."),
    "meadow": ("in", "The grass was high and the flowers were yellow."),
    "valley": ("in", "The river was slow and the hills were green."),
    "cave": ("in", "The stones were wet and the dark was deep."),
    "kitchen": ("in", "The oven was warm and the bread was ready."),
    "school": ("at", "The lessons were over and the yard was empty."),
    "museum": ("in", "The statues were white and the floors were polished."),
    "station": ("at", "The trains were late and the clock was slow."),
    "farm": ("on", "The barn was red and the fields were golden."),
    "tower": ("in", "The stairs were winding and the windows were small."),
    "jungle": ("in", "The leaves were huge and the birds were loud."),
    "lake": ("at", "The water was still and the reeds were whispering."),
    "bridge": ("on", "The planks were creaking and the river was fast."),
    "attic": ("in", "The boxes were dusty and the roof was low."),
}

# animal -> what it is like
ANIMALS: dict[str, str] = {
    "fox": "It had a red tail and clever eyes.",
    "rabbit": "It had long ears and a soft nose.",
    "owl": "It had round eyes and quiet wings.",
    "bear": "It had brown fur and heavy paws.",
    "cat": "It had green eyes and a striped coat.",
    "dog": "It had a wagging tail and a wet nose.",
    "horse": "It had a dark mane and strong legs.",
    "mouse": "It had tiny feet and a thin tail.",
    "turtle": "It had a hard shell and a slow walk.",
    "parrot": "It had bright feathers and a loud voice.",
    "dolphin": "It had a smooth back and a wide smile.",
    "elephant": "It had big ears and a gentle trunk.",
    "monkey": "It had long arms and a cheeky grin.",
    "penguin": "It had a black coat and a funny walk.",
    "wolf": "It had gray fur and sharp ears.",
    "goat": "It had curved horns and a short beard.",
    "duck": "It had yellow feet and a flat beak.",
    "lion": "It had a golden mane and a deep voice.",
    "frog": "It had long legs and a wide mouth.",
    "raven": "It had black wings and a wise look.",
    "squirrel": "It had a bushy tail and quick paws.",
    "deer": "It had slim legs and big dark eyes.",
    "hedgehog": "It had sharp spines and a shy face.",
    "crab": "It had two claws and a sideways walk.",
}

# object -> what it did
OBJECTS: dict[str, str] = {
    "lantern": "The lantern gave a warm light.",
    "map": "The map showed a secret path.",
    "key": "The key opened a hidden door.",
    "book": "The book told of far countries.",
    "flute": "The flute played a sweet tune.",
    "rope": "The rope was long and strong.",
    "mirror": "The mirror showed a smiling face.",
    "drum": "The drum made the ground shake.",
    "kite": "The kite pulled up to the clouds.",
    "compass": "The compass pointed to the north.",
    "bell": "The bell rang clear and far.",
    "blanket": "The blanket kept them warm.",
    "basket": "The basket was full of bread.",
    "letter": "The letter carried good news.",
    "coin": "The coin shone like the sun.",
    "hat": "The hat was much too big.",
    "umbrella": "The umbrella kept the rain away.",
    "violin": "The violin sang like a bird.",
    "candle": "The candle burned all night.",
    "boat": "The boat floated without a sound.",
    "crown": "The crown was made of leaves.",
    "feather": "The feather was as light as air.",
    "clock": "The clock ticked like a heart.",
    "teapot": "The teapot was still hot.",
}

# mood -> the opening's word for the day, then two sentences
MOODS: dict[str, tuple[str, str, str]] = {
    "happy": (
        "sunny",
        "{name} felt happy and laughed out loud.",
        "The {animal} danced around {name} in the sunshine.",
    ),
    "sad": (
        "gray",
        "{name} felt sad and wiped away a tear.",
        "The {animal} sat close to {name} and said nothing.",
    ),
    "brave": (
        "windy",
        "{name} felt brave and took a deep breath.",
        "The {animal} followed {name} without any fear.",
    ),
    "funny": (
        "bright",
        "{name} told a funny joke about a pickle.",
        "The {animal} giggled until it fell over.",
    ),
    "calm": (
        "quiet",
        "{name} felt calm and closed both eyes.",
        "The {animal} lay down and breathed slowly.",
    ),
    "mysterious": (
        "foggy",
        "{name} heard a mysterious whisper behind the {object}.",
        "The {animal} looked up and slowly nodded.",
    ),
    "exciting": (
        "stormy",
        "{name} began an exciting race against the rain.",
        "The {animal} ran ahead as fast as it could.",
    ),
    "cozy": (
        "snowy",
        "{name} made a cozy place to sit.",
        "The {animal} curled up beside {name} and purred softly.",
    ),
}

# ending as worded in the prompt -> the closing sentence
ENDINGS: dict[str, str] = {
    "they become friends": "From that day on {name} and the {animal} were friends.",
    "they go home": "In the evening {name} and the {animal} went home together.",
    "they share a meal": "At last {name} and the {animal} shared a meal.",
    "they find a treasure": "Under an old stone {name} and the {animal} found a treasure.",
    "they fall asleep": "Under the stars {name} and the {animal} fell asleep.",
    "they say goodbye": "At sunset {name} and the {animal} said goodbye.",
    "it was all a dream": "Then {name} woke up and knew that it was all a dream.",
    "they win a prize": "Before night {name} and the {animal} won a prize.",
}

TITLE = "Title: The {animal} and the {object}"
OPENING = "One {day} morning {name} was {prep} the {place}."
OPENING_FRIEND = "One {day} morning {name} and {friend} were {prep} the {place}."
MEETING = "There {she} met {a_animal}."
MEETING_FRIEND = "There they met {a_animal}."
FINDING = "The {animal} gave {her} {a_object}."
FINDING_FRIEND = "The {animal} gave {friend} {a_object}."
CLOSING = "The end."
