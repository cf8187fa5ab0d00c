"""LangChain with private text: by a gateway on this machine (see openai_client.py for how to start one).

OPENAI_API_KEY=KEY python examples/langchain_embeddings.py http://127.0.0.1:8378/v1
"""

import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

NOTES = [
    "The patient was given penicillin and sent home.",
    "The invoice of March has not been paid yet.",
    "Our train to Vienna leaves at nine.",
]

embeddings = OpenAIEmbeddings(
    model="text-embedding-3-small",
    base_url=sys.argv[1],
    # without this LangChain cuts texts into another model's token ids, which the gateway refuses
    check_embedding_ctx_length=False,
)
store = InMemoryVectorStore(embeddings)
store.add_texts(NOTES)
for found, score in store.similarity_search_with_score("Which bills are open?", k=2):
    print(f"{score:5.2f}  {found.page_content}")
