"""Models: where their parts are, cutting them, and what is put on top of a part."""

import logging
from typing import TYPE_CHECKING

import torch

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.models.adapters import (
        METHODS,
        Method,
        adapter_state,
        attach,
        attach_lora,
        check_method,
        load_adapter,
        load_adapter_state,
        save_adapter,
        tune_whole,
        weights_file,
    )
    from cutlayer.models.anatomy import FAMILIES, Family, Kind, family_of
    from cutlayer.models.archive import (
        MANIFEST,
        Archive,
        FileEntry,
        Manifest,
        candidate_tokens,
        largest_file,
        read_archive,
        read_manifest,
        write_archive,
    )
    from cutlayer.models.beams import BeamSearch, Continued, Translated, best_texts
    from cutlayer.models.cutting import (
        Bottom,
        Part,
        Parts,
        Tail,
        Top,
        block_list,
        embedding_table,
        isolated_dropout,
        seed_dropout,
        set_checkpointing,
        set_dropout,
        split,
    )
    from cutlayer.models.decoding import Decoding, cache_bytes, threads_of_pass, weights_of
    from cutlayer.models.embedding import Embeddings, embedding_spec, pool
    from cutlayer.models.heads import Head, seeded
    from cutlayer.models.inputs import Inputs, Layout, Template
    from cutlayer.models.inventory import WeightGroup, inventory, share_handed_out
    from cutlayer.models.load import (
        STARTER,
        STARTER_DECODER,
        fingerprint,
        load_classifier,
        load_model,
        load_tokenizer,
        max_length,
    )
    from cutlayer.models.optimiser import Optimiser
    from cutlayer.models.quantization import Quantization, is_quantized, quantized, unpacked_bytes
    from cutlayer.models.reconstruction import ReconstructionHead, last_states
    from cutlayer.models.seq2seq import (
        Seq2SeqBottom,
        Seq2SeqParts,
        Seq2SeqTail,
        Seq2SeqTop,
        cut_up,
        split_seq2seq,
        target_template,
    )
    from cutlayer.models.twin import own_bytes, share_base, twin
    from cutlayer.models.word_vectors import principal_components, word_vectors

# The first multi-threaded tanh of a process can be off by 1e-4 in one thread's half (MKL's lazy
# initialisation races); a small one in the importing thread settles it.
torch.tanh(torch.ones(4))
# PEFT loads bitsandbytes where it is installed, which then says that it lacks a package that would fetch functions from
# the hub; nothing here uses them.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__all__ = [
    "FAMILIES",
    "MANIFEST",
    "METHODS",
    "STARTER",
    "STARTER_DECODER",
    "Archive",
    "BeamSearch",
    "Bottom",
    "Continued",
    "Decoding",
    "Embeddings",
    "Family",
    "FileEntry",
    "Head",
    "Inputs",
    "Kind",
    "Layout",
    "Manifest",
    "Method",
    "Optimiser",
    "Part",
    "Parts",
    "Quantization",
    "ReconstructionHead",
    "Seq2SeqBottom",
    "Seq2SeqParts",
    "Seq2SeqTail",
    "Seq2SeqTop",
    "Tail",
    "Template",
    "Top",
    "Translated",
    "WeightGroup",
    "adapter_state",
    "attach",
    "attach_lora",
    "best_texts",
    "block_list",
    "cache_bytes",
    "candidate_tokens",
    "check_method",
    "cut_up",
    "embedding_spec",
    "embedding_table",
    "family_of",
    "fingerprint",
    "inventory",
    "is_quantized",
    "isolated_dropout",
    "largest_file",
    "last_states",
    "load_adapter",
    "load_adapter_state",
    "load_classifier",
    "load_model",
    "load_tokenizer",
    "max_length",
    "own_bytes",
    "pool",
    "principal_components",
    "quantized",
    "read_archive",
    "read_manifest",
    "save_adapter",
    "seed_dropout",
    "seeded",
    "set_checkpointing",
    "set_dropout",
    "share_base",
    "share_handed_out",
    "split",
    "split_seq2seq",
    "target_template",
    "threads_of_pass",
    "tune_whole",
    "twin",
    "unpacked_bytes",
    "weights_file",
    "weights_of",
    "word_vectors",
    "write_archive",
]

on_first_use(__name__)
