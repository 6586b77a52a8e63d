"""`pliant.plasticity` as a person calls it: tables, stopping, what it refuses."""

import copy
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import pliant
from pliant import measure
from pliant.errors import PliantError
from pliant.measure import jacobian, words
from pliant.measure.result import COLUMNS
from tests.anatomy import zoo
from tests.conftest import tiny_vit


def images(count, seed=0, shift=0.0):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + shift


X, Y = images(48), images(48, 1, 0.3)


def test_tables():
    found = pliant.plasticity(tiny_vit(), X.split(16), Y.split(16), protocol="both", estimator="paired", local=2)
    table, blocks = found.table(), found.blocks()
    assert list(table.columns) == list(COLUMNS) and list(blocks.columns) == ["block", *COLUMNS]
    assert table["component"].tolist() == ["LN1", "MHA", "LN2", "FC1", "FC2"] * 2
    assert len(blocks) == 2 * 4 * 5 and set(blocks["block"]) == {0, 1, 2, 3}
    assert (table["images"] == 48).all() and (table["pairs"] == 48).all()
    assert ((table["low"] < table["mean"]) & (table["mean"] < table["high"])).all()
    assert found.rates.shape == (4, 5, 48)
    in_situ = found.table("in-situ")
    np.testing.assert_allclose(in_situ["mean"], found.rates.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(in_situ["std"], found.rates.mean(0).std(1, ddof=1), rtol=1e-4)
    by_block = found.blocks("in-situ").groupby("component", sort=False)["mean"].mean()
    np.testing.assert_allclose(by_block.to_numpy(), in_situ["mean"], rtol=1e-12)
    assert found.ranking() == in_situ.sort_values("mean", ascending=False)["component"].tolist()
    assert found.sublayers()["component"].tolist() == ["LN1 to MHA", "LN2 to FC2"]
    assert (table["bound"] >= table["largest"]).all() and (table["largest"] >= table["mean"]).all()
    assert in_situ["local"].notna().all() and (in_situ["local"] <= in_situ["bound"] * (1 + 1e-5)).all()
    with pytest.raises(PliantError, match="was not measured"):
        pliant.plasticity(tiny_vit(), [X], [Y], local=0).table("shared-input")


def test_elasticity_is_free_of_scale_and_plasticity_is_not():
    """Tokens twice as long, and a norm that does not see it: its rate halves, its elasticity stays."""
    model, scaled = tiny_vit(depth=1, norm_layer=partial(torch.nn.LayerNorm, eps=0.0)), None
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in scaled.named_parameters():
            if name.startswith(("patch_embed", "cls_token", "pos_embed")):
                parameter *= 2
    before, after = (pliant.plasticity(m, [X], [Y], local=0).table().set_index("component") for m in (model, scaled))
    assert after.loc["LN1", "mean"] == pytest.approx(before.loc["LN1", "mean"] / 2, rel=1e-5)
    assert after.loc["LN1", "elasticity"] == pytest.approx(before.loc["LN1", "elasticity"], rel=1e-5)
    assert after.loc["MHA", "mean"] == pytest.approx(before.loc["MHA", "mean"], rel=1e-5)


def test_elasticity_equals_its_definition():
    model = tiny_vit(depth=1)
    found = pliant.plasticity(model, [X], [Y], estimator="all-pairs", local=0).table().set_index("component")
    with torch.no_grad():
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(torch.cat([X, Y])))).double()
        out = model.blocks[0].norm1.double()(tokens)
    change = [(z[:48, None] - z[None, 48:]).flatten(2).norm(dim=2) / z.flatten(1).square().sum(1).mean().sqrt()
              for z in (out, tokens)]  # fmt: skip
    assert found.loc["LN1", "elasticity"] == pytest.approx(float((change[0] / change[1]).mean()), rel=1e-5)


def test_images_stream_until_every_component_is_precise():
    seen = []

    def stream(tensor):
        for batch in tensor.split(16):
            seen.append(len(batch))
            yield batch

    lines = []
    x, y = images(640), images(640, 1, 0.3)
    found = pliant.plasticity(tiny_vit(), stream(x), stream(y), precision=0.03, local=0, progress=lines.append)
    table = found.table()
    assert ((table["high"] - table["mean"]) / table["mean"]).max() <= 0.03 == found.summary["precision"]
    assert 32 <= found.summary["images"] < 640 and sum(seen) <= 2 * found.summary["images"] + 32
    assert "images a side" in lines[0]
    short = pliant.plasticity(tiny_vit(), [X], [Y], precision=1e-4, local=0)
    assert short.summary["images"] == 48 and short.summary["reached"] > 1e-4
    assert pliant.plasticity(tiny_vit(), [X], [Y], images=10, local=0).summary["images"] == 10


def test_a_model_is_left_as_it_was():
    model = tiny_vit(proj_drop_rate=0.5).train()
    model.blocks[1].eval()
    state = copy.deepcopy(model.state_dict())
    one, two = (pliant.plasticity(model, [X], [Y], local=0).table() for _ in range(2))
    pd.testing.assert_frame_equal(one, two)  # no dropout
    assert model.training and not model.blocks[1].training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(dtype):
    model = tiny_vit().to(dtype)
    found = pliant.plasticity(model, [X], [Y], protocol="both", local=1)
    wanted = pliant.plasticity(copy.deepcopy(model).float(), [X], [Y], protocol="both", local=1)
    pd.testing.assert_frame_equal(found.table(), wanted.table())
    assert next(model.parameters()).dtype == dtype


def test_identical_pairs_are_dropped_and_counted():
    y = Y.clone()
    y[:5] = X[:5]
    found = pliant.plasticity(tiny_vit(), [X], [y], protocol="both", estimator="paired", local=0)
    assert found.summary["dropped"] == 5 and found.summary["pairs"] == 43 and np.isfinite(found.rates).all()
    near = pliant.plasticity(tiny_vit(), [X], [X + 1e-4], estimator="all-pairs", local=0)
    assert np.isfinite(near.table()["mean"]).all() and (near.table()["low"] > 0).all()


def test_what_is_not_finite_names_its_block():
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight[0, 0] = torch.nan
    for protocol in measure.PROTOCOLS:
        with pytest.raises(PliantError, match="block 2: the output of FC1"):
            pliant.plasticity(model, [X], [Y], protocol=protocol, local=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 1.0}, "--precision 1: must lie between 0 and 1"),
        ({"precision": 0.0}, "--precision"),
        ({"protocol": "situ"}, "--protocol situ: unknown"),
        ({"estimator": "some"}, "--estimator some: unknown"),
        ({"images": 1}, "--images 1: must be at least 2"),
        ({"radius": "large"}, "--radius large"),
        ({"radius": -1.0}, "--radius -1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(PliantError, match=message):
        pliant.plasticity(tiny_vit(), [X], [Y], **options)


def test_too_little_to_measure():
    model = tiny_vit()
    with pytest.raises(PliantError, match="1 images a side"):
        pliant.plasticity(model, [X[:1]], [Y])
    with pytest.raises(PliantError, match="0 images a side"):
        pliant.plasticity(model, [], [Y])
    with pytest.raises(PliantError, match="all downstream images are equal"):
        pliant.plasticity(model, [X], [Y[:1].expand(48, -1, -1, -1)])
    with pytest.raises(PliantError, match="all pairs are identical"):
        pliant.plasticity(model, [X], [X], estimator="paired")
    with pytest.raises(PliantError, match="differ in shape"):
        pliant.plasticity(model, [X], [Y[..., :16]])
    with pytest.raises(PliantError, match="blocks.0 has no LN1 with parameters"):
        pliant.plasticity(tiny_vit(norm_layer=partial(torch.nn.LayerNorm, elementwise_affine=False)), [X], [Y])
    with pytest.raises(PliantError, match="of no known family"):
        pliant.plasticity(torch.nn.Linear(3, 3), [X], [Y])


def test_ctrl_c_gives_what_there_is():
    def endless(shift):
        for number in range(10_000):
            if number == 4 and shift:
                os.kill(os.getpid(), signal.SIGINT)
            yield images(8, number, shift)

    assert threading.current_thread() is threading.main_thread()
    found = pliant.plasticity(tiny_vit(), endless(0.0), endless(0.3), precision=1e-6)
    assert found.summary["stopped"] and 32 <= found.summary["images"] <= 40
    assert found.table()["mean"].notna().all()


def test_memory_does_not_grow_with_the_number_of_images():
    from pliant.measure.statistics import Moments

    sizes = []
    for count in (2, 20):
        moments = Moments(20)
        for seed in range(count):
            rng = np.random.default_rng(seed)
            moments.add(
                measure.statistics.Sample(rng.uniform(1, 2, (20, 4, 4)), np.ones((20, 2, 4)), np.ones((20, 2, 4))),
                np.ones((4, 4), bool),
            )
        sizes.append(sum(value.nbytes for value in vars(moments).values() if isinstance(value, np.ndarray)))
    assert sizes[0] == sizes[1]


def test_saved_and_read(tmp_path):
    found = pliant.plasticity(tiny_vit(), [X], [Y], protocol="both", local=1)
    found.save(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["plasticity.parquet", "summary.json"]
    read = measure.load(tmp_path / "m")
    for name in ("table", "blocks", "sublayers"):
        pd.testing.assert_frame_equal(getattr(read, name)(), getattr(found, name)())
    pd.testing.assert_frame_equal(read.differences, found.differences)
    assert read.summary == json.loads(json.dumps(found.summary))
    json.dumps(found.as_json(), allow_nan=False)
    with pytest.raises(PliantError, match="holds no plasticity.parquet"):
        measure.load(tmp_path)
    (tmp_path / "m" / "plasticity.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(PliantError, match="not readable as a measurement"):
        measure.load(tmp_path / "m")


def test_comparison():
    one, two = (pliant.plasticity(tiny_vit(), [X], [Y + shift], local=0) for shift in (0.0, 1.0))
    table = measure.compare(one, two).set_index("component")
    assert (table["ratio"] == table["mean_second"] / table["mean_first"]).all()
    assert ((table["ratio_low"] < table["ratio"]) & (table["ratio"] < table["ratio_high"])).all()
    other = pliant.plasticity(tiny_vit(), [X], [Y], protocol="shared-input", local=0)
    with pytest.raises(PliantError, match="share no protocol"):
        measure.compare(one, other)


def fake(rates, elasticities=None):
    """A measurement with these mean rates and narrow intervals."""
    names = list(measure.COMPONENTS)
    rows = pd.DataFrame({"component": names, "mean": rates, "elasticity": elasticities or rates})
    rows = rows.assign(
        low=rows["mean"] * 0.99,
        high=rows["mean"] * 1.01,
        kind="component",
        protocol="in-situ",
        block=pd.array([pd.NA] * 5, dtype="Int64"),
    )
    rows = rows.assign(elasticity_low=rows["elasticity"] * 0.99, elasticity_high=rows["elasticity"] * 1.01)
    for column in COLUMNS:
        rows[column] = rows.get(column, 1.0)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    value = dict(zip(names, rates, strict=True))
    differences = pd.DataFrame([
        {"protocol": "in-situ", "first": a, "second": b, "difference": value[a] - value[b],
         "low": value[a] - value[b] - 0.02, "high": value[a] - value[b] + 0.02} for a, b in pairs
    ])  # fmt: skip
    return measure.Plasticity(rows, differences, {"protocols": ["in-situ"]})


def test_sentences_follow_from_the_figures():
    said = words.sentences(fake([0.2, 3.0, 0.3, 2.0, 1.99]), "in-situ")
    assert said[0] == "MHA, FC1 and FC2 amplify; LayerNorms contract."
    assert said[1] == "By plasticity: MHA > FC1 ~ FC2 > LN2 > LN1."
    assert len(said) == 2
    said = words.sentences(fake([20.0, 0.05, 25.0, 0.7, 1.0], [1.1, 0.8, 1.2, 0.6, 0.9]), "in-situ")
    assert said[0] == "LayerNorms amplify; MHA and FC1 contract; FC2 cannot be told from 1."
    assert "effect of scale" in said[2] and "LN2 > LN1 > FC2 > MHA > FC1" in said[2]
    assert (
        words.sentences(fake([0.2, 3.0, 1.5, 0.5, 0.4]), "in-situ")[0]
        == "MHA and LN2 amplify; LN1, FC1 and FC2 contract."
    )


@pytest.mark.parametrize("name", ["timm-qknorm", "eva02", "hf-beit", "gpt2"])
def test_local_figure_is_the_norm_of_the_dense_jacobian(name):
    from pliant import anatomy
    from pliant.measure.parts import attention_on, component_on, parts_of

    model = zoo.build(name).double()
    with torch.no_grad():
        inputs = zoo.inputs(name, 2)
        tokens = anatomy.family_of(model).embed(model, inputs if name == "gpt2" else inputs.double())
        parts = parts_of(model, anatomy.find(model))[0]
        attention = attention_on(model, anatomy.family_of(model), parts, tokens)
    for component in ("LN1", "MHA"):
        function = component_on(component, parts, attention)
        found = jacobian.spectral_norms(function, tokens, iterations=2000, tolerance=0)
        for index in range(len(tokens)):
            x = tokens[index : index + 1]
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                dense = torch.func.jacrev(function)(x)
            dense = dense.reshape(-1, x.numel()).detach()
            assert float(found[index]) == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=2e-3), component


_LARGE = """
import torch
from pathlib import Path
from timm.models.vision_transformer import VisionTransformer
from pliant import anatomy
from pliant.measure import PROTOCOLS

def kilobytes(field):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1])

with torch.device("meta"):
    model = VisionTransformer(img_size=64, patch_size=16, embed_dim=1024, depth=24, num_heads=16)
model = model.to_empty(device="cpu").eval()
assert sum(p.numel() for p in model.parameters()) > 300e6
with torch.no_grad():
    block = model.blocks[0].state_dict()
    for value in model.state_dict().values():
        value.fill_(1e-3)
    for value in model.blocks[0].parameters():
        value.normal_(std=0.02)
    for other in model.blocks[1:]:
        other.load_state_dict(block)
    model.patch_embed.proj.weight.normal_(std=0.02)
    for protocol in PROTOCOLS.values():
        tokens = anatomy.family_of(model).embed(model, torch.randn(16, 3, 64, 64))
        before = kilobytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        sample = protocol(model).measure(tokens, range(4))
        print(round((kilobytes("VmHWM") - before) / 1024), end=" ")
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="reads Linux's own account of memory")
def test_a_model_of_300_million_parameters_is_measured_block_by_block():
    """24 blocks' activations of 16 images would be 0.4 GB, and the weights are 1.2 GB."""
    done = subprocess.run([sys.executable, "-c", _LARGE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    in_situ, shared = map(int, done.stdout.split())
    assert in_situ < 150  # megabytes
    assert shared < 600  # of which 200 for the d x d matrices of 48 linear layers; 435 to 505 were seen


def test_an_activation_in_place_changes_nothing():
    plain, in_place = tiny_vit(act_layer=torch.nn.ReLU), tiny_vit(act_layer=partial(torch.nn.ReLU, inplace=True))
    one, two = (pliant.plasticity(model, [X], [Y], local=0).blocks() for model in (plain, in_place))
    pd.testing.assert_frame_equal(one, two)


def test_sublayers_of_post_norm_blocks_end_at_their_norms():
    found = pliant.plasticity(zoo.build("eva-postnorm"), [X], [Y], local=0)
    sub, table = found.sublayers(blocks=True), found.blocks().set_index(["block", "component"])
    assert (sub["mean"] != 1).all()
    for row in sub.to_dict("records"):  # a rate of two steps lies within the products of their rates
        steps = ("MHA", "LN1") if row["component"] == "LN1 to MHA" else ("FC1", "FC2", "LN2")
        most = np.prod([table.loc[(row["block"], step), "largest"] for step in steps])
        assert row["largest"] <= 1.2 * most  # the activation, between FC1 and FC2, stretches by 1.13 at most


def test_what_puts_out_nothing_has_a_rate_of_zero():
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[1].attn.proj.weight.zero_()
        model.blocks[2].mlp.fc2.weight.zero_()
    found = pliant.plasticity(model, [X], [Y], protocol="both", precision=0.3, local=1)
    blocks = found.blocks("in-situ").set_index(["block", "component"])
    assert blocks.loc[(1, "MHA"), "mean"] == 0 == blocks.loc[(2, "FC2"), "bound"]
    assert found.table()["elasticity"].notna().sum() >= 6  # only those of the dead components are unknown
    json.dumps(found.as_json(), allow_nan=False)


def test_a_dead_part_is_named():
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[1].norm1.weight.zero_()
    with pytest.raises(PliantError, match="block 1: MHA is given the same input for different images"):
        pliant.plasticity(model, [X], [Y])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_and_inputs_of_other_precisions(dtype):
    model = tiny_vit()
    wanted = pliant.plasticity(model, [X], [Y], protocol="both", local=0).table()
    found = pliant.plasticity(model.to(dtype), [X.to(dtype)], [Y.to(dtype)], protocol="both", local=0).table()
    np.testing.assert_allclose(found["mean"], wanted["mean"], rtol=0.02 if dtype == torch.bfloat16 else 1e-5)


def test_a_norm_that_serves_twice_and_hooks_after_an_error():
    model = tiny_vit()
    for block in model.blocks:
        block.norm2 = block.norm1
    with pytest.raises(PliantError, match="LN1 is called 2 times"):
        pliant.plasticity(model, [X], [Y], local=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    shared = pliant.plasticity(model, [X], [Y], protocol="shared-input", local=0).table()
    assert shared["mean"][0] == shared["mean"][2]


@pytest.mark.parametrize("batch", [torch.zeros(4, 9, dtype=torch.int64), X[0], X.byte(), X[:, :2], X[..., :30, :30]])
def test_inputs_that_do_not_fit_are_named(batch):
    with pytest.raises(PliantError, match="does not fit VisionTransformer"):
        pliant.plasticity(tiny_vit(), [batch], [batch.flip(0)])


def test_sequences_that_do_not_fit():
    with pytest.raises(PliantError, match="does not fit GPT2Model"):
        ids = torch.randint(0, 48, (8, 30))
        pliant.plasticity(zoo.build("gpt2"), [ids], [ids.flip(0)])


def test_many_images_at_once_are_measured_in_pieces():
    x, y = images(150), images(150, 1)
    one = pliant.plasticity(tiny_vit(depth=1), x, y, estimator="paired", local=0)
    two = pliant.plasticity(tiny_vit(depth=1), x.split(50), y.split(50), estimator="paired", local=0)
    assert one.summary["images"] == 150
    np.testing.assert_allclose(one.rates, two.rates, rtol=1e-5)
