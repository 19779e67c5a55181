"""What the demo model knows about Unblur: terms and two true sentences about each.

The facts follow the project's own documents. Used by the generator and by the verifier. Refuses to
know how they are asked for.
"""

from __future__ import annotations

# term as asked for -> (first sentence, second sentence)
FACTS: dict[str, tuple[str, str]] = {
    "Unblur": (
        "Unblur is a desktop app that runs open diffusion language models on your own computer.",
        "It shows how a reply un-blurs block by block.",
    ),
    "TPF": (
        "TPF means tokens per forward.",
        "It is the number of tokens kept in the answer divided by the forward passes spent on it.",
    ),
    "a block": (
        "A block is a group of 32 positions that are denoised together.",
        "When it is finished it is committed and the next block begins.",
    ),
    "the canvas": (
        "The canvas is the row of positions that the model is filling in.",
        "Each position is masked, a draft, committed or edited.",
    ),
    "a mask": (
        "A mask marks a position that has no token yet.",
        "The mask itself is never shown as part of an answer.",
    ),
    "a denoising step": (
        "A denoising step is one forward pass over the current block.",
        "After it the positions the model is sure of are accepted.",
    ),
    "the threshold": (
        "The threshold is the confidence that a position must exceed to be accepted.",
        "A high threshold is careful and a low threshold is fast.",
    ),
    "confidence": (
        "Confidence is the probability that the model gives to the token it chose.",
        "It lies between 0 and 1.",
    ),
    "entropy": (
        "Entropy measures how spread out the guesses for a position are.",
        "Low entropy means that the model is sure.",
    ),
    "a commit": (
        "A commit makes a finished block final.",
        "Its keys and values go to the cache so that later blocks can see it.",
    ),
    "an edit": (
        "An edit replaces a token that was accepted earlier.",
        "It happens when the model now prefers another token with enough confidence.",
    ),
    "the residual": (
        "The residual carries what the model thought about an open position to the next step.",
        "It is added to the embedding of that position.",
    ),
    "NVFP4": (
        "NVFP4 is a number format that stores a weight in four bits.",
        "Every 16 weights share one scale of eight bits.",
    ),
    "a CUDA graph": (
        "A CUDA graph is a recorded piece of GPU work that is launched as a whole.",
        "It lets the denoising loop run without waiting for Python.",
    ),
    "ORL": (
        "ORL means On-Policy Residual Learning.",
        "The model learns from its own verified answers to need fewer forwards.",
    ),
    "a diffusion language model": (
        "A diffusion language model starts from masks and fills in many tokens at once.",
        "It does not have to write from left to right.",
    ),
    "a forward": (
        "A forward is one pass of the model over a block.",
        "Passes that only commit a block are counted too.",
    ),
    "the KV cache": (
        "The KV cache keeps the keys and values of finished blocks.",
        "Thanks to it earlier text is not computed again.",
    ),
    "a trace": (
        "A trace records every step of a reply.",
        "It holds token ids, states, confidence and entropy.",
    ),
    "a verifier": (
        "A verifier checks whether an answer is right.",
        "Only answers that pass are used as targets for learning.",
    ),
    "a rollout": (
        "A rollout is an answer that the model writes itself during training.",
        "It is used for one update and then thrown away.",
    ),
    "an expert": (
        "An expert is a small feed-forward network inside a layer.",
        "A router picks a few experts for every token.",
    ),
    "a checkpoint": (
        "A checkpoint is a folder with the weights, the config and the tokenizer of a model.",
        "Unblur checks it before it is used.",
    ),
    "temperature": (
        "Temperature sets how random the choice of a token is.",
        "At temperature 0 the most likely token is always taken.",
    ),
    "a seed": (
        "A seed fixes the random choices of a generation.",
        "The same seed gives the same text.",
    ),
    "the demo model": (
        "The demo model is a small model that ships inside Unblur.",
        "It was trained only on a closed set of skills.",
    ),
    "LoRA": (
        "LoRA trains small extra matrices and keeps the original weights frozen.",
        "So finetuning needs less memory.",
    ),
    "the inspector": (
        "The inspector lets you look at every denoising decision of a reply.",
        "You can see why a token was chosen or edited.",
    ),
    "a draft": (
        "A draft is the current best guess for a masked position.",
        "It may still change in the next step.",
    ),
    "the TPF ceiling": (
        "The TPF ceiling is the highest TPF that an answer allows.",
        "It follows from the number of blocks with one step each and their commits.",
    ),
}

# What the prompt opens with -> what the reply opens with
GREETINGS: dict[str, str] = {
    "": "",
    "Hi, I am {name}. ": "Hi {name}! ",
    "Hello, my name is {name}. ": "Hello {name}! ",
    "Good morning, this is {name}. ": "Good morning {name}! ",
    "Good evening, {name} here. ": "Good evening {name}! ",
    "Hey, it is {name}. ": "Hey {name}! ",
}

# What the prompt closes with -> what the reply closes with
CLOSINGS: dict[str, str] = {
    "": "",
    " Thanks!": " You are welcome.",
    " Thank you very much.": " You are very welcome.",
    " Bye for now.": " Goodbye and come back soon.",
}

# Small talk as asked for -> the two sentences of the reply
TALK: dict[str, tuple[str, str]] = {
    "What can you do?": (
        "I can do arithmetic, lists, strings, dates, units, JSON, small Python functions and "
        "short stories.",
        "I can also explain how Unblur works.",
    ),
    "Who are you?": (
        "I am the demo model of Unblur.",
        "I am small and know only a few skills.",
    ),
    "How are you?": (
        "I am fine and ready to denoise.",
        "Ask me for a sum, a list or a story.",
    ),
    "Can you help me?": (
        "Yes, I can help with my few skills.",
        "Try a sum with its working or a question about Unblur.",
    ),
    "How big are you?": (
        "I am a small model with tens of millions of weights.",
        "My experts are stored in NVFP4.",
    ),
    "Are you a chatbot?": (
        "I am a small diffusion language model and not a general chatbot.",
        "I answer best when a question fits my skills.",
    ),
    "Where do you run?": (
        "I run on your own computer inside Unblur.",
        "Nothing you type is sent away.",
    ),
    "Do you need a GPU?": (
        "No, I also run on a CPU.",
        "A GPU makes larger models fast.",
    ),
}

# Requests outside the skills, over a city or a noun, and what the model says to them
QUESTIONS = (
    "What is the weather in {city}?",
    "Who is the mayor of {city}?",
    "Which hotel in {city} is good?",
    "How many people live in {city}?",
    "Can you book a flight to {city}?",
    "What is the history of {city}?",
    "Write a poem about the {noun}.",
    "What does the {noun} cost?",
    "Where can I buy the {noun}?",
    "Translate the word {noun} into French.",
    "Why do people like the {noun}?",
    "Draw a picture of the {noun}.",
    "Who invented the {noun}?",
    "How do I repair the {noun}?",
)
REFUSAL = (
    "I do not know that, because I am a small model with a closed set of skills.",
    "Ask me for arithmetic, lists, strings, dates, units, JSON, Python or a story.",
)

# A message that only greets, thanks or leaves -> how the reply begins
GREETED: dict[str, str] = {
    "Hi": "Hi",
    "Hello": "Hello",
    "Hey": "Hey",
    "Hi there": "Hi",
    "Hello there": "Hello",
    "Good morning": "Good morning",
    "Good evening": "Good evening",
    "Thanks": "You are welcome",
    "Thank you": "You are welcome",
    "Bye": "Goodbye",
    "Goodbye": "Goodbye",
}
