"""A prompt is prefilled in one place, its cache is handed over as bytes, and decode goes on in another, bit for bit.

Run it: python examples/01_hand_off.py
"""

from pathlib import Path

import torch

from prfaas_ref import generate, load_model
from prfaas_ref.model import prefill
from prfaas_ref.model.config import END
from prfaas_ref.model.generation import greedy
from prfaas_ref.serving.state_bytes import StateBytes

torch.set_grad_enabled(False)
prompt = list(Path(__file__).read_bytes()[:680])
prefiller, decoder = load_model("toy"), load_model("toy")  # two machines with the same weights

# The prefill cluster computes the prompt. What it has then: pages of full attention, and the state of every KDA layer.
state, pages = prefiller.new_state(), prefiller.new_pages(11)
state.tables[0] = list(range(11))
first = greedy(prefill(prefiller, prompt, state, pages))

# The hand-off: bytes, whatever carries them.
layout = StateBytes.after(len(prompt), prefiller.config, prefiller.dtype)
state_bytes = b"".join(layout.pack(layer, memory).numpy().tobytes() for layer, memory in state.layers.items())
page_bytes = pages.numpy().tobytes()
print(f"{len(prompt)} tokens: {len(page_bytes):,} bytes of pages, {len(state_bytes):,} bytes of recurrent state")

# The decode cluster takes them in, at page numbers of its own, and goes on from the first token.
state = layout.unpack(torch.frombuffer(bytearray(state_bytes), dtype=torch.uint8), decoder)
there = torch.frombuffer(bytearray(page_bytes), dtype=pages.dtype).view_as(pages)
pages = decoder.new_pages(16)
state.tables[0] = [15, 3, 8, 1, 12, 5, 0, 9, 14, 2, 7]
pages[state.tables[0]] = there
tokens = [first]
while len(tokens) < 24 and tokens[-1] != END:
    tokens.append(greedy(decoder.forward(torch.tensor([tokens[-1:]]), state, pages)[0, -1]))

alone = generate(decoder, prompt, max_tokens=24)
assert tokens == alone.tokens
print(f"{len(tokens)} tokens after the hand-off, the same as in one process alone: {tokens[:8]} ...")
