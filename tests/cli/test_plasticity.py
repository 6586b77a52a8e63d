"""`pliant plasticity` and `pliant bounds` as people call them."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pliant import measure
from tests.adapt.conftest import write_images

QUICK = ("--random-init", "--img-size", "32", "--local", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    root = tmp_path_factory.mktemp("sides")
    return write_images(root / "one", each=14), write_images(root / "two", each=14, seed=5)


def test_a_measurement_and_what_it_leaves(pliant, sides, tmp_path):
    out = tmp_path / "m"
    code, text, err = pliant(
        "plasticity", "test_vit", *QUICK, "--pretrain", sides[0], "--downstream", sides[1], "--protocol", "both",
        "--precision", "0.5", "--out", out,
    )  # fmt: skip
    assert code == 0 and "weights are random" in err
    assert "By plasticity:" in text and "in-situ: 32 images a side" in text and "shared-input" in text
    assert text.strip().endswith(f"report: {out}/report.html   tables: {out}/plasticity.parquet")
    assert {p.name for p in out.iterdir()} == {"plasticity.parquet", "summary.json", "plasticity.png", "report.html"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["settings"]["seed"] == 0 and summary["command"].startswith("pliant plasticity test_vit")
    assert summary["reached"] <= 0.5 and summary["downstream"].startswith(str(sides[1]))
    again = tmp_path / "again"
    pliant(*summary["command"].split()[1:-1], again)
    pd.testing.assert_frame_equal(measure.load(out).table(), measure.load(again).table())
    code, text, _ = pliant("plasticity", "compare", out, again, "--out", tmp_path / "both", "--json")
    assert code == 0 and all(row["ratio"] == 1 for row in json.loads(text)["table"])
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", sides[1], "--out", out)
    assert code == 2 and "exists and is not empty" in err


def test_json_is_one_object_and_says_when_images_run_out(pliant, sides, tmp_path):
    code, text, err = pliant(
        "plasticity", "test_vit", *QUICK, "--downstream", sides[0], "--precision", "0.0001", "--estimator", "paired",
        "--json", "--out", tmp_path / "m",
    )  # fmt: skip
    found = json.loads(text)
    assert code == 0 and [row["component"] for row in found["table"]] == ["LN1", "MHA", "LN2", "FC1", "FC2"]
    assert found["images"] == found["pairs"] == 21 and len(found["blocks"]) == 5 * found["depth"]
    assert "the images ran out at 21 a side" in err and "both sides are halves" in err


def test_what_tuning_changed(pliant, sides, tmp_path):
    pliant("adapt", sides[0], "--model", "test_vit", "--random-init", "--img-size", "32", "--method", "mha", "--lr", "1e-2",
           "--epochs", "2", "--device", "cpu", "--out", tmp_path / "run")  # fmt: skip
    code, text, _ = pliant("plasticity", tmp_path / "run", "--downstream", sides[0], "--local", "0", "--json", "--out",
                           tmp_path / "m")  # fmt: skip
    changes = {row["component"]: row["ratio"] for row in json.loads(text)["changes"]}
    assert code == 0 and changes["MHA"] != 1
    before, after = measure.load(tmp_path / "m" / "backbone"), measure.load(tmp_path / "m")
    first = [each.blocks().query("block == 0 and component == 'LN1'")["mean"].item() for each in (before, after)]
    assert first[0] == first[1]  # nothing before it was trained, and the images are the same
    code, _, err = pliant("plasticity", tmp_path / "run", "--downstream", sides[0], "--img-size", "64")
    assert code == 2 and "brings its weights and image size" in err


def test_corrupt_images_are_skipped_up_to_a_share(pliant, tmp_path):
    data = write_images(tmp_path / "data", each=20)
    (data / "cat" / "3.png").write_bytes(b"no image")
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", data, "--out", tmp_path / "a")
    assert code == 0 and "1 unreadable skipped" in err and "3.png" in err
    for index in (5, 7, 9, 11):
        (data / "cat" / f"{index}.png").write_bytes(b"no image")
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", data, "--out", tmp_path / "b")
    assert code == 2 and "cannot be read" in err and "--max-corrupt" in err and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pico"], "--downstream is missing"),
        (["pico", "--downstream", "/no/such"], "/no/such: no such"),
        (["pico", "--downstream", "digits", "--precision", "2"], "--precision 2: must lie between 0 and 1"),
        (["pico", "--downstream", "digits", "--radius", "wide"], "--radius wide"),
        (["pico", "--downstream", "digits", "--device", "tpu9"], "--device tpu9"),
        (["gpt2", "--downstream", "digits"], "gpt2 reads text"),
        (["pico", "--downstream", "text:a.txt"], "pico reads images"),
        (["pico", "--downstream", "digits", "--pretrain", "text:a.txt"], "--pretrain text:a.txt"),
        (["pico", "extra", "--downstream", "digits"], "one model is measured at a time"),
        (["compare", "/no/such"], "two folders"),
        (["compare", "/no/such", "/no/such"], "holds no plasticity.parquet"),
        (["resnet18", "--downstream", "digits"], "resnet18"),
    ],
)
def test_bad_input_is_one_line(pliant, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = pliant("plasticity", *arguments)
    assert code == 2 and out == "" and message in err
    assert err.splitlines()[-1].startswith("pliant: ") and list(tmp_path.iterdir()) == []


def test_one_image_a_side_or_all_equal(pliant, tmp_path):
    pixels = Image.fromarray(np.full((8, 8, 3), 90, np.uint8))
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pixels.save(tmp_path / "data" / name / "0.png")
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", tmp_path / "data", "--out", tmp_path / "m")
    assert code == 2 and "two are the least" in err
    for name in ("a", "b"):
        for index in range(5):
            pixels.save(tmp_path / "data" / name / f"{index}.png")
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", tmp_path / "data", "--out", tmp_path / "m")
    assert code == 2 and "identical" in err


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A tiny GPT-2 with a tokenizer of words, as a folder; and two texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from tests.anatomy import zoo

    root = tmp_path_factory.mktemp("gpt2")
    texts = []
    for name, seed in (("a", 0), ("b", 1)):
        words = np.random.default_rng(seed).choice([f"w{n}" for n in range(40)], 1500)
        texts.append(root / f"{name}.txt")
        texts[-1].write_text(" ".join(words))
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train([str(text) for text in texts], trainers.WordLevelTrainer(vocab_size=48, special_tokens=["[UNK]"]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(root / "model")
    zoo.build("gpt2").save_pretrained(root / "model")
    return root / "model", *texts


def test_text(pliant, language_model, tmp_path):
    model, one, two = language_model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, text, _ = pliant("plasticity", model, "--pretrain", f"text:{one}", "--downstream", f"text:{two}", "--protocol",
                               "both", "--sequence-length", "20", "--local", "1", "--json", "--out", tmp_path / "m")  # fmt: skip
    found = json.loads(text)
    assert code == 0 and found["tokens"] == 20 and found["images"] == 75
    assert all(row["bound"] >= row["largest"] for row in found["table"])
    code, _, err = pliant("plasticity", model, "--downstream", f"text:{one}", "--sequence-length", "25")
    assert code == 2 and "--sequence-length 25" in err and "2 to 24 tokens" in err
    (tmp_path / "short.txt").write_text("w1 w2 w3")
    code, _, err = pliant("plasticity", model, "--downstream", f"text:{tmp_path}/short.txt")
    assert code == 2 and "two are the least" in err


def test_bounds(pliant, sides):
    code, text, _ = pliant("bounds", "test_vit", "--random-init", "--img-size", "32", "--data", sides[0], "--json")
    rows = json.loads(text)["bounds"]
    assert code == 0 and all(row["bound"] >= row["largest"] > 0 for row in rows)
    code, text, _ = pliant("bounds", "pico", "--radius", "19.4", "--json")
    known = {row["component"]: row["bound"] for row in json.loads(text)["bounds"]}
    assert code == 0 and known["LN1"] is None and known["MHA"] > known["FC1"] > 0
    code, text, _ = pliant("bounds", "pico")
    assert code == 0 and "not known without --data" in text


def test_language_models_are_never_filled_at_random(pliant, language_model, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    model, one, two = language_model
    place = shutil.copytree(model, tmp_path / "model")
    weights = load_file(place / "model.safetensors")
    name = next(key for key in weights if key.endswith("h.0.attn.c_attn.weight"))
    save_file(
        {key: value for key, value in weights.items() if key != name}, place / "model.safetensors", {"format": "pt"}
    )
    code, _, err = pliant("plasticity", place, "--downstream", f"text:{one}")
    assert code == 2 and "h.0.attn.c_attn.weight" in err
    (place / "model.safetensors").write_bytes(b"garbage")
    code, _, err = pliant("plasticity", place, "--downstream", f"text:{one}")
    assert code == 2 and "could not be loaded" in err


def test_the_same_data_under_two_names_is_halved(pliant, sides, tmp_path):
    code, text, err = pliant("plasticity", "test_vit", *QUICK, "--pretrain", f"{sides[0]}/", "--downstream", sides[0], "--json",
                             "--out", tmp_path / "m")  # fmt: skip
    found = json.loads(text)
    assert code == 0 and found["images"] == 21 and found["dropped"] == 0 and "halves" in err
    code, _, err = pliant(
        "plasticity", "test_vit", *QUICK, "--downstream", sides[0], "--out", sides[0] / "cat" / "0.png" / "x"
    )
    assert code == 2 and "cannot be made" in err
    code, _, err = pliant("plasticity", "test_vit", *QUICK, "--downstream", sides[0], "--max-corrupt", "7")
    assert code == 2 and "--max-corrupt 7" in err
    code, _, err = pliant("plasticity", "compare")
    assert code == 2 and "two folders" in err
