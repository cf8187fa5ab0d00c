"""The official OpenAI client, unchanged, with private text: by a gateway on this machine.

    cutlayer gateway key
    export CUTLAYER_VENDOR=https://vendor.example:8377
    cutlayer gateway --eta 80 --denoiser none --alias text-embedding-3-small=starter

    OPENAI_BASE_URL=http://127.0.0.1:8378/v1 OPENAI_API_KEY=KEY python examples/openai_client.py

The vendor sees privatized tokens; the application sees an API that it knows.
"""

import numpy as np
from openai import OpenAI

NOTES = [
    "The patient was given penicillin and sent home.",
    "Antibiotics were prescribed, and the patient left the ward.",
    "The invoice of March has not been paid yet.",
]

client = OpenAI()  # address and key stand in the environment
answer = client.embeddings.create(model="text-embedding-3-small", input=NOTES)
vectors = np.array([each.embedding for each in answer.data])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

print(f"{len(vectors)} embeddings of {vectors.shape[1]} numbers; {answer.usage.total_tokens} tokens left privatized")
for note, similarity in zip(NOTES[1:], vectors[1:] @ vectors[0], strict=True):
    print(f"{similarity:5.2f}  {note}")
