"""Every privatizer: one draw per text, whatever the batch; identities that name everything; honest claims."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from cutlayer.core import Claim, ConfigError, DataError, Place, PrivacyError, Ragged, Rows, Tokens
from cutlayer.privacy import (
    LATTICE,
    PRIVATIZERS,
    CtiSpec,
    CustomerSecret,
    NoPrivacy,
    PrivacySpec,
    Privatizer,
    Release,
    TextToText,
    UtilityImportance,
    Vector,
    build_privatizer,
)
from cutlayer.privacy.privatizers import privatizer as privatizer_module
from cutlayer.privacy.privatizers import vector as vector_module
from tests.contract.noise_checks import ALPHA, stream
from tests.quick import slow_but

VOCABULARY, WIDTH = 60, 12
TABLE = torch.from_numpy(stream(1).standard_normal((VOCABULARY, WIDTH)) * 0.3).float()
CANDIDATES = torch.arange(VOCABULARY) >= 5
SECRET = CustomerSecret.unsafe(1)
SPECS = {
    "none": NoPrivacy(),
    "text-to-text": TextToText(eta=20),
    "vector": Vector(eta=20),
    "vector, clipped": Vector(eta=20, clip=True),
    "vector at activations": Vector(eta=20, place=Place.ACTIVATIONS),
}


def build(spec: PrivacySpec, **changes: object) -> Privatizer:
    given: dict[str, object] = {
        "secret": SECRET,
        "table": TABLE,
        "candidates": CANDIDATES,
        "table_fingerprint": "sha256:t",
        "boundary": "sha256:m/2",
        **changes,
    }
    return build_privatizer(spec, **given)  # type: ignore[arg-type]


def texts(*lists: list[int]) -> Tokens:
    return Tokens((Ragged.from_lists(lists),))


def rows_for(tokens: Tokens, *, seed: int = 9) -> Rows:
    """A stand-in for a bottom: two special rows per text, rows that depend on the ids."""
    lengths = torch.stack([segment.lengths for segment in tokens.segments]).sum(0) + 2
    values = torch.from_numpy(stream(seed).standard_normal((int(lengths.sum()), WIDTH))).float()
    return Rows(Ragged(values, lengths), lengths[:, None])


def released(privatizer: Privatizer, tokens: Tokens, **look: object) -> Release:
    release = privatizer.tokens(tokens, labels=None, **look)  # type: ignore[arg-type]
    return privatizer.activations(release, rows_for(tokens)) if release.pending else release


a_few = settings(deadline=None, max_examples=25)
lists_of_ids = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), min_size=1, max_size=6)

# ---------------------------------------------------------------- all of them


def test_every_registered_privatizer_is_tested() -> None:
    assert {spec.mechanism for spec in SPECS.values()} | {"words"} == set(PRIVATIZERS)  # words: see `test_words`


@pytest.mark.parametrize("name", SPECS)
@a_few
@given(lists=lists_of_ids, data=st.data())
def test_a_text_has_one_draw_in_any_batch_and_order(name: str, lists: list[list[int]], data: st.DataObject) -> None:
    privatizer = build(SPECS[name])
    if SPECS[name].place is Place.ACTIVATIONS:
        return  # rows of another batch are other rows: see test_noise_covers_the_rows_it_was_drawn_for
    whole = released(privatizer, texts(*lists))
    order = data.draw(st.permutations(range(len(lists))))
    again = released(build(SPECS[name]), texts(*(lists[i] for i in order)))
    for place, i in enumerate(order):
        assert again.identities[place] == whole.identities[i]
        assert again.draws[place] == whole.draws[i]
        assert torch.equal(again.payload.segments[0][place], whole.payload.segments[0][i])


@pytest.mark.parametrize("name", ["text-to-text", "vector", "vector, clipped"])
@a_few
@given(lists=lists_of_ids)
def test_blocks_and_pieces_change_nothing(name: str, lists: list[list[int]]) -> None:
    long = [*lists, list(range(VOCABULARY)) * 3]
    whole = released(build(SPECS[name]), texts(*long))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privatizer_module, "BLOCK_ELEMENTS", 0)
        patch.setattr(privatizer_module, "QUERY_BLOCK", 180)
        parts = released(build(SPECS[name]), texts(*long))
    assert torch.equal(whole.payload.segments[0].values, parts.payload.segments[0].values)


@pytest.mark.parametrize("name", SPECS)
def test_identity_names_everything_the_bytes_depend_on(name: str) -> None:
    spec, tokens = SPECS[name], texts([7, 8, 9])

    def identity(privatizer: Privatizer, tokens: Tokens = tokens, **look: object) -> bytes:
        return released(privatizer, tokens, **look).identities[0]

    others = [
        identity(build(spec, secret=CustomerSecret.unsafe(2))),
        identity(build(spec), texts([7, 8, 10])),
        identity(build(spec), look=1),
        identity(build(spec), look=2),
        identity(build(spec), Tokens((Ragged.from_lists([[7]]), Ragged.from_lists([[8, 9]])))),
        identity(build(spec), Tokens((Ragged.from_lists([[7, 8]]), Ragged.from_lists([[9]])))),
        identity(build(spec, candidates=torch.arange(VOCABULARY) >= 6)),
    ]
    if spec.mechanism != "none":
        others.append(identity(build(spec.model_copy(update={"eta": 21.0}))))
        space = "boundary" if spec.place is Place.ACTIVATIONS else "table_fingerprint"
        others.append(identity(build(spec, **{space: "another"})))
    assert identity(build(spec)) not in others
    assert len(set(others)) == len(others)


def test_mechanisms_do_not_share_draws() -> None:
    releases = [released(build(spec), texts([7, 8, 9])) for spec in SPECS.values()]
    assert len({release.draws[0] for release in releases}) == len(SPECS)
    assert len({release.contents[0] for release in releases}) == 1


@pytest.mark.parametrize(
    ("name", "identity", "unit"),
    [
        ("none", "d00769f12c5c88736687cec087e7a17d", "none"),
        ("text-to-text", "c82831fcc17a9e72137d3ea67a02b05a", "1/distance in table sha256:t"),
        ("vector", "214caf543210f9c217fe3bb5b494ad03", "1/distance in table sha256:t"),
        ("vector at activations", "0b0208919c5995cbb52e2352e88925a3", "1/distance in hidden rows of sha256:m/2"),
    ],
)
def test_names_of_draws_outlive_versions(name: str, identity: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As this version named them first: under other names all texts would be drawn, and charged, again."""
    monkeypatch.setattr(privatizer_module, "stream_fingerprint", lambda: b"fixed")
    release = build(SPECS[name]).tokens(texts([7, 8, 9]), labels=None)
    assert (release.identities[0].hex(), release.unit) == (identity, unit)
    assert release.mechanism == SPECS[name].mechanism


def test_an_identity_changes_with_the_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = released(build(SPECS["vector"]), texts([7])).identities
    monkeypatch.setattr(privatizer_module, "stream_fingerprint", lambda: b"another numpy")
    assert released(build(SPECS["vector"]), texts([7])).identities != before


@pytest.mark.parametrize("name", SPECS)
def test_what_a_release_says_of_itself(name: str) -> None:
    spec, tokens = SPECS[name], texts([7, 8, 9], [], [5])
    privatizer = build(spec)
    release = released(privatizer, tokens)
    assert release.tokens.tolist() == [3, 0, 1]
    assert release.mechanism == privatizer.name == spec.mechanism + "+clip" * spec.clipped
    assert release.unit == privatizer.unit
    assert release.pending is None
    assert "tensor" not in repr(release)
    if spec.place is Place.ACTIVATIONS:
        assert release.etas.tolist() == [20, 20, 20]
        assert release.unit == "1/distance in hidden rows of sha256:m/2"
    elif spec.mechanism == "none":
        assert release.etas.tolist() == [math.inf] * 3
        assert release.unit == "none"
    else:
        assert release.etas.tolist() == [20, 0, 20]
        assert release.unit == "1/distance in table sha256:t"


def test_labels_do_not_touch_noise_without_cti() -> None:
    tokens = texts([7, 8], [9, 10, 11])
    for spec in SPECS.values():
        first, second = (build(spec).tokens(tokens, labels=torch.tensor(labels)) for labels in ([0, 1], [1, 0]))
        assert first.identities == second.identities


@pytest.mark.parametrize("ids", [[VOCABULARY], [-1]])
@pytest.mark.parametrize("name", ["text-to-text", "vector"])
def test_ids_beyond_the_table_are_refused(name: str, ids: list[int]) -> None:
    with pytest.raises(DataError, match=rf"Token id {ids[0]} is outside the table's 0\.\.59"):
        build(SPECS[name]).tokens(texts([3], ids), labels=None)


# ---------------------------------------------------------------- what is claimed


def honest(spec: PrivacySpec, **changes: object) -> Privatizer:
    return build(spec, secret=CustomerSecret(bytes(32)), **changes)


def test_claims() -> None:
    claim = honest(SPECS["text-to-text"]).guarantee
    assert (claim.claim, claim.budget, claim.per) == (Claim.METRIC, 20, "token")
    assert claim.unit == "1/distance in table sha256:t"
    assert any("dial" in caveat for caveat in claim.caveats)
    at_rows = honest(SPECS["vector at activations"]).guarantee
    assert at_rows.per == "row"
    assert any("every row" in caveat for caveat in at_rows.caveats)
    with pytest.raises(PrivacyError, match="unlike units"):
        claim.compose(at_rows)
    nothing = honest(SPECS["none"]).guarantee
    assert (nothing.claim, nothing.budget) == (Claim.NONE, math.inf)


@pytest.mark.parametrize("name", SPECS)
def test_a_seed_voids_every_claim(name: str) -> None:
    guarantee = build(SPECS[name]).guarantee
    assert guarantee.claim is Claim.NONE
    assert "seed" in guarantee.caveats[0]


@pytest.mark.parametrize("name", [name for name in SPECS if name != "none"])
def test_deviations_are_complete_sentences_about_settings(name: str) -> None:
    deviations = build(SPECS[name]).deviations
    assert {"where noise goes", "noise generator", "special tokens", "repeated texts"} <= {d.what for d in deviations}


# ---------------------------------------------------------------- text to text


def test_only_candidates_come_out_and_other_tokens_are_noised_like_any() -> None:
    release = released(build(SPECS["text-to-text"]), texts(list(range(VOCABULARY)) * 5))
    found = release.payload.segments[0].values
    assert bool(CANDIDATES[found].all())
    barely = released(build(TextToText(eta=1e6)), texts(list(range(VOCABULARY)))).payload.segments[0].values
    assert torch.equal(barely[5:], torch.arange(5, VOCABULARY))  # almost no noise: candidates stay themselves


def voronoi(table: Tensor, token: int, eta: float) -> np.ndarray:
    """Pr[token becomes j] in the plane: exact along each ray, midpoints over the angle."""
    angles = (np.arange(20_000) + 0.5) / 20_000 * 2 * np.pi
    rays = np.stack([np.cos(angles), np.sin(angles)], 1)
    points = table.double().numpy()
    start = points[token]
    mass = np.zeros(len(points))
    for ray in rays:
        # where the ray leaves one cell for another: crossings of all bisectors
        crossings = {0.0}
        for i in range(len(points)):
            for j in range(i):
                along = ray @ (points[j] - points[i])
                if along:
                    middle = ((points[j] ** 2).sum() - (points[i] ** 2).sum()) / 2 - start @ (points[j] - points[i])
                    crossings.add(max(middle / along, 0.0))
        edges = [*sorted(crossings), np.inf]
        survival = [1.0 if r == 0 else 0.0 if np.isinf(r) else (1 + eta * r) * np.exp(-eta * r) for r in edges]
        for near, far, before, after in zip(edges, edges[1:], survival, survival[1:], strict=False):
            inside = start + ray * (near + 1 if np.isinf(far) else (near + far) / 2)
            mass[((points - inside) ** 2).sum(1).argmin()] += before - after
    return mass / len(rays)


@pytest.mark.parametrize("token", slow_but([1], [0, 1, 2]))
def test_ids_are_distributed_as_the_plane_says(token: int) -> None:
    table, eta = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.25, 0.75]]), 2.0
    expected = voronoi(table, token, eta)
    assert expected.sum() == pytest.approx(1, abs=1e-9)

    def observed(eta: float) -> np.ndarray:
        privatizer = build_privatizer(
            # equal tokens behind equal ones would have equal draws
            TextToText(eta=eta, noise_window=None),
            secret=CustomerSecret.unsafe(4),
            table=table,
            candidates=torch.ones(3, dtype=torch.bool),
            table_fingerprint="toy",
        )
        text = texts([token] * 2000)
        found = [privatizer.tokens(text, labels=None, look=i).payload.segments[0].values for i in range(50)]
        return torch.cat(found).bincount(minlength=3).numpy()

    def p_value(counts: np.ndarray) -> float:
        return float(stats.chisquare(counts, expected * counts.sum()).pvalue)

    assert p_value(observed(eta)) > ALPHA
    assert p_value(observed(eta * 1.1)) < ALPHA
    assert p_value(observed(eta / 1.1)) < ALPHA


# ---------------------------------------------------------------- vectors


def test_vectors_are_noisy_rows_on_the_lattice_with_each_tokens_own_eta() -> None:
    ids = torch.arange(VOCABULARY).repeat(40)
    importance = UtilityImportance(
        torch.linspace(-2, 2, VOCABULARY, dtype=torch.float64)[:, None].repeat(1, 2), CtiSpec()
    )
    spec = Vector(eta=20, cti=CtiSpec(), noise_window=None)
    privatizer = build(spec, importance=importance)
    tokens = Tokens((Ragged(ids, torch.tensor([len(ids)])),))
    values = privatizer.tokens(tokens, labels=None).payload.segments[0].values
    assert values.dtype == torch.float32
    assert bool((values * (1 / LATTICE) % 1 == 0).all())
    etas = importance.eta(tokens, None, eta0=20)[0]
    radius = (values.double() - TABLE[ids].double()).norm(dim=1) * etas
    assert stats.kstest(radius.numpy(), stats.gamma(WIDTH).cdf).pvalue > ALPHA
    wrong = radius / etas * etas.mean()
    assert stats.kstest(wrong.numpy(), stats.gamma(WIDTH).cdf).pvalue < ALPHA


def test_clipped_rows_are_noisy_rows_no_longer_than_any_row_of_a_token() -> None:
    spec = Vector(eta=12, clip=True)  # about half of the rows are longer
    tokens, largest = texts(list(range(VOCABULARY)) * 4), float(TABLE[CANDIDATES].double().norm(dim=1).max())
    table = TABLE.clone()
    table[0] *= 100  # no candidate: no token's row may be as long
    rows = build(spec, table=table).tokens(tokens, labels=None).payload.segments[0].values.double()
    assert float(rows.norm(dim=1).max()) <= largest * (1 + 1e-6)
    same = build(spec, table=table)
    named = same._name(tokens, None, None, None)
    drawn = [noise for _, noise in same._noise(width=WIDTH, etas=named.etas, names=named.names)]
    noise = torch.from_numpy(np.concatenate(drawn))
    noisy = (table[tokens.values].double() + noise).mul(1 / LATTICE).round().mul(LATTICE)
    long = noisy.norm(dim=1) > largest
    assert 0.1 < float(long.double().mean()) < 0.9
    assert torch.equal(rows[~long], noisy[~long].float().double())
    along = nn.functional.cosine_similarity(rows[long], noisy[long])
    assert float((1 - along).abs().max()) < 1e-9
    assert float((rows[long].norm(dim=1) - largest).abs().max()) < 1e-6


def test_what_rows_are_clipped_to_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through the whole table, and a call of `embed` has many frames."""
    looked: list[int] = []
    longest = vector_module.largest_norm
    monkeypatch.setattr(vector_module, "largest_norm", lambda *given: looked.append(1) or longest(*given))
    privatizer = build(Vector(eta=12, clip=True))
    for _ in range(3):
        privatizer.tokens(Tokens((Ragged.from_lists([[5, 6], [7]]),)), labels=None)
    assert looked == [1]


def test_clipping_has_a_name_and_draws_of_its_own_and_the_same_promise() -> None:
    plain, clipped = (build(SPECS[name], secret=CustomerSecret(b"s" * 32)) for name in ("vector", "vector, clipped"))
    assert (plain.name, clipped.name) == ("vector", "vector+clip")
    assert plain.unit == clipped.unit
    assert plain.guarantee.budget == clipped.guarantee.budget
    assert any("45.7 %" in caveat for caveat in clipped.guarantee.caveats)
    assert any("SnD eq. (2)" in deviation.what for deviation in clipped.deviations)
    tokens = texts([7, 8, 9])
    drawn = [privatizer.tokens(tokens, labels=None).draws for privatizer in (plain, clipped)]
    assert drawn[0] != drawn[1]  # shortened and not, one draw would be two looks for the price of one


def test_every_row_is_noised_at_the_activations() -> None:
    privatizer = build(SPECS["vector at activations"])
    tokens = texts([7, 8, 9], [])
    release = privatizer.tokens(tokens, labels=None)
    assert release.pending is Place.ACTIVATIONS
    assert torch.equal(release.payload.segments[0].values, tokens.segments[0].values)  # private still
    rows = rows_for(tokens)
    noised = privatizer.activations(release, rows)
    moved = (noised.payload.packed.values - rows.packed.values).norm(dim=1)
    assert bool((moved > 0).all())  # specials' rows too: above a block they hold the text
    assert noised.pending is None
    with pytest.raises(PrivacyError, match="waits for noise"):
        privatizer.activations(noised, rows)


def test_noise_covers_the_rows_it_was_drawn_for() -> None:
    """One draw over two versions of a text's rows would give their difference away in clear."""
    privatizer = build(SPECS["vector at activations"])
    tokens = texts([7, 8, 9])
    release = privatizer.tokens(tokens, labels=None)
    rows, other = rows_for(tokens), rows_for(tokens, seed=10)
    first, again, second = (privatizer.activations(release, version) for version in (rows, rows, other))
    assert torch.equal(first.payload.packed.values, again.payload.packed.values)
    assert first.draws == again.draws != second.draws
    difference = second.payload.packed.values - first.payload.packed.values
    clean = other.packed.values - rows.packed.values
    assert float((difference - clean).norm()) > 0.1


@pytest.mark.parametrize("name", ["none", "text-to-text", "vector"])
def test_rows_carry_the_draw_that_was_made_at_the_tokens(name: str) -> None:
    privatizer = build(SPECS[name])
    tokens = texts([7, 8, 9])
    release = privatizer.tokens(tokens, labels=None)
    rows = rows_for(tokens)
    carried = privatizer.activations(release, rows)
    assert carried.payload is rows
    assert carried.draws == release.draws
    assert carried.identities != release.identities


# ---------------------------------------------------------------- building


@pytest.mark.parametrize(
    ("spec", "changes", "expected"),
    [
        (SPECS["text-to-text"], {"table": None}, "table = None: must be the token-embedding table"),
        (
            SPECS["text-to-text"],
            {"candidates": None, "table_fingerprint": ""},
            "candidates = None.*table_fingerprint = ''",
        ),
        (SPECS["vector"], {"table": None}, "table = None"),
        (SPECS["vector at activations"], {"boundary": ""}, "boundary = ''"),
        (TextToText(eta=20, cti=CtiSpec()), {}, "importance = 'missing'"),
    ],
)
def test_what_is_missing_is_named(spec: PrivacySpec, changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build(spec, **changes)


def test_importance_of_other_settings_is_refused() -> None:
    importance = UtilityImportance(torch.zeros(VOCABULARY, 2, dtype=torch.float64), CtiSpec(smoothing=2))
    with pytest.raises(ConfigError, match="other settings"):
        build(TextToText(eta=20, cti=CtiSpec()), importance=importance)


def test_no_privacy_needs_nothing() -> None:
    privatizer = build_privatizer(NoPrivacy(), secret=SECRET)
    tokens = texts([7, 10**6])
    assert privatizer.tokens(tokens, labels=None).payload is tokens


# ---------------------------------------------------------------- CTI


def _cti(*, class_free: bool) -> tuple[Privatizer, Callable[[object], Release]]:
    spec = CtiSpec(class_free=class_free)
    tokens = texts([7, 8, 9], [10, 11], [7, 12])
    importance = UtilityImportance.fit(tokens, torch.tensor([0, 1, 0]), vocab_size=VOCABULARY, num_labels=2, spec=spec)
    privatizer = honest(TextToText(eta=20, cti=spec), importance=importance)
    return privatizer, lambda labels: privatizer.tokens(tokens, labels=labels)  # type: ignore[arg-type]


def test_cti_claims_nothing_and_draws_twice() -> None:
    privatizer, draw = _cti(class_free=False)
    assert privatizer.guarantee.claim is Claim.NONE
    assert privatizer.name == "text-to-text+cti"
    assert privatizer.unit == build(SPECS["text-to-text"]).unit  # one dial: its budget is shared
    training, inference = draw(torch.tensor([1, 0, 1])), draw(None)
    assert set(training.identities).isdisjoint(inference.identities)
    assert {d.what for d in privatizer.deviations} >= {"CTI: p(t | c)", "CTI: c0", "CTI: guarantee"}


def test_class_free_noise_does_not_depend_on_labels() -> None:
    _, draw = _cti(class_free=True)
    labelled, permuted, unlabelled = draw(torch.tensor([0, 1, 0])), draw(torch.tensor([1, 1, 0])), draw(None)
    assert labelled.identities == permuted.identities == unlabelled.identities


# ---------------------------------------------------------------- memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc, which only Linux has")
def test_peak_memory_does_not_grow_with_the_corpus() -> None:
    script = textwrap.dedent("""
        import json, sys, torch
        from cutlayer.core import Ragged, Tokens
        from cutlayer.privacy import CustomerSecret, TextToText, build_privatizer
        from cutlayer.privacy.privatizers import privatizer as module
        torch.set_num_threads(1)
        module.BLOCK_ELEMENTS = 2**20  # 8,192 tokens, so that the smaller corpus fills blocks too
        def peak():
            return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) / 1024
        table = torch.randn((2000, 128), generator=torch.Generator().manual_seed(1)) * 0.1
        privatizer = build_privatizer(TextToText(eta=40), secret=CustomerSecret.unsafe(1), table=table,
                                      candidates=torch.ones(2000, dtype=torch.bool), table_fingerprint='t')
        ids = torch.arange(200_000) * 7 % 2000
        peaks = []
        for tokens in (*ids.split(40_000), ids):  # as uploads take a corpus, letting go what was released; and at once
            lengths = torch.full((len(tokens) // 10,), 10)
            privatizer.tokens(Tokens((Ragged(tokens, lengths),)), labels=None)
            peaks.append(peak())
        print(json.dumps(peaks))
    """)
    # glibc raises its mmap threshold as blocks are freed, and then keeps them: which ones differs
    # from run to run by tens of MiB. With the threshold fixed, the peak is what was alive.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240, env=environment
    )
    _, first, *others, at_once = json.loads(run.stdout)  # the first fills what is made once
    assert max(others) - first < 4
    # identities, ids, lengths and 160,000 charges of 16,000 more texts; their noise alone would be 156 MiB
    assert at_once - first < 50
