"""Every kind of image file that people have, as RGB pixels the right way up."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from pliant.data import list_images, load_image
from pliant.errors import PliantError

from .conftest import encoded, picture


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation_is_applied(tmp_path, orientation, kind):
    plain = picture(size=(40, 20)).resize((40, 20)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo"
    plain.save(path, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(path) as stored:
        expected = ImageOps.exif_transpose(stored).convert("RGB")
    assert expected.size == ((40, 20) if orientation < 5 else (20, 40))
    np.testing.assert_array_equal(pixels(load_image(path)), pixels(expected))


def test_orientation_6_equals_rotated_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(pixels(load_image(tmp_path / "a.png")), np.rot90(pixels(picture()), k=-1))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_reason_to_drop_a_photograph(tmp_path):
    picture().save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(pixels(load_image(tmp_path / "a.png")), pixels(picture()))


def test_grey_and_black_and_white(tmp_path):
    grey = picture().convert("L")
    grey.save(tmp_path / "grey.png")
    np.testing.assert_array_equal(pixels(load_image(tmp_path / "grey.png"))[..., 1], np.asarray(grey))
    picture().convert("1").save(tmp_path / "bw.png")
    assert set(np.unique(pixels(load_image(tmp_path / "bw.png")))) == {0, 255}


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_white(tmp_path, mode):
    image = Image.new(mode, (2, 1), 0)
    opaque = (10, 20, 30, 255) if mode == "RGBA" else (10, 255)
    image.putpixel((1, 0), opaque)
    image.save(tmp_path / "a.png")
    kept = list(opaque[:3]) if mode == "RGBA" else [opaque[0]] * 3
    assert pixels(load_image(tmp_path / "a.png")).tolist() == [[[255] * 3, kept]]


def test_half_transparent_black_is_grey():
    image = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert pixels(load_image(encoded(image)))[0, 0].tolist() == [127] * 3


def test_palette_with_and_without_transparency(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "opaque.png")
    image.save(tmp_path / "clear.png", transparency=0)
    image.save(tmp_path / "clear.gif", transparency=0)
    assert pixels(load_image(tmp_path / "opaque.png")).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    for name in ("clear.png", "clear.gif"):
        assert pixels(load_image(tmp_path / name)).tolist() == [[[255, 255, 255], [0, 0, 255]]]


def test_colour_key_is_transparent(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "a.png", transparency=(1, 2, 3))
    assert pixels(load_image(tmp_path / "a.png"))[0, 0].tolist() == [255] * 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, kind):
    deep = np.array([[0, 257, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep", kind)
    assert pixels(load_image(tmp_path / "deep"))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_big_endian_sixteen_bits(tmp_path):
    header = b"P5 3 1 65535\n"
    (tmp_path / "a.pgm").write_bytes(header + struct.pack(">3H", 0, 32768, 65535))
    assert pixels(load_image(tmp_path / "a.pgm"))[0, :, 0].tolist() == [0, 128, 255]


def test_thirty_two_bits_and_floats(tmp_path):
    Image.fromarray(np.array([[0, 2**20, 2**21]], dtype=np.int32)).save(tmp_path / "int.tif")
    assert pixels(load_image(tmp_path / "int.tif"))[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(tmp_path / "unit.tif")
    assert pixels(load_image(tmp_path / "unit.tif"))[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[np.nan, 128, 255]], dtype=np.float32)).save(tmp_path / "bytes.tif")
    assert pixels(load_image(tmp_path / "bytes.tif"))[0, :, 0].tolist() == [0, 128, 255]


def test_cmyk_keeps_its_colours(tmp_path):
    red = Image.new("RGB", (16, 16), (250, 5, 5))
    red.convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    red.convert("CMYK").save(tmp_path / "a.tif")
    for name in ("a.jpg", "a.tif"):
        assert np.abs(pixels(load_image(tmp_path / name)).astype(int) - [250, 5, 5]).max() < 8


def test_webp_tiff_bmp_and_a_lying_suffix(tmp_path):
    picture().save(tmp_path / "a.webp", lossless=True)
    picture().save(tmp_path / "a.TIF", "TIFF", compression="tiff_lzw")
    picture().save(tmp_path / "a.BMP", "BMP")
    picture().save(tmp_path / "really_a_png.jpg", "PNG")
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(pixels(load_image(path)), pixels(picture()))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(tmp_path, kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    extra = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(tmp_path / "a", kind, save_all=True, append_images=frames[1:], **extra)
    assert pixels(load_image(tmp_path / "a"))[0, 0].tolist() == [255, 0, 0]


def test_non_ascii_paths_and_bytes(tmp_path):
    path = tmp_path / "Gänseblümchen 雏菊 🌼.png"
    picture().save(path)
    np.testing.assert_array_equal(pixels(load_image(path)), pixels(load_image(path.read_bytes())))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of few bytes whose header claims a large size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JPEG"),
        (b"plain text", "no JPEG"),
        (encoded(picture(size=(64, 64)), "JPEG")[:-900], "truncated"),
        (encoded(picture(size=(64, 64)), "PNG")[:-4000], "truncated"),
        (png_claiming(60_000, 60_000), "decompression bomb"),
        (png_claiming(40, 40), "truncated"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "no JPEG"),
    ],
)
def test_what_cannot_be_decoded_is_one_clear_error(tmp_path, content, reason):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(PliantError, match=reason) as error:
        load_image(tmp_path / "a.jpg")
    assert "a.jpg" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Truncated File Read")
def test_every_cut_of_a_file_is_an_image_or_a_clear_error():
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = encoded(picture(), kind)
        for end in range(0, len(whole), max(1, len(whole) // 40)):
            try:
                assert load_image(whole[:end]).mode == "RGB"
            except PliantError:
                continue


def test_missing_file(tmp_path):
    with pytest.raises(PliantError, match=r"nothing\.png: no such file"):
        load_image(tmp_path / "nothing.png")


def test_suffixes_whatever_their_case_and_what_is_skipped_is_reported(tmp_path):
    for name in ("A.JPG", "b.tif", "c.webp", "d.JPEG", "e.BMP"):
        picture().save(tmp_path / name)
    for name in ("f.heic", "g.heic", "notes.txt", ".hidden.jpg", "bare"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "__MACOSX").mkdir()
    found, notes = list_images([tmp_path])
    assert [path.name for path in found] == ["A.JPG", "b.tif", "c.webp", "d.JPEG", "e.BMP"]
    assert any("2 hidden files and folders ignored" in note for note in notes)
    skipped = "4 files of no supported image type ignored (1 without suffix, 2 .heic, 1 .txt)"
    assert any(skipped in note for note in notes)


def test_listing_files_and_folders(tmp_path):
    picture().save(tmp_path / "one.png")
    (tmp_path / "more" / "deep").mkdir(parents=True)
    picture().save(tmp_path / "more" / "deep" / "two.png")
    (tmp_path / "odd").write_bytes(encoded(picture()))
    found, notes = list_images([tmp_path / "one.png", tmp_path / "more", str(tmp_path / "odd"), tmp_path / "one.png"])
    assert [path.name for path in found] == ["one.png", "two.png", "odd"]
    assert notes == []


def test_listing_survives_links_in_circles(tmp_path):
    picture().save(tmp_path / "one.png")
    (tmp_path / "circle").symlink_to(tmp_path)
    assert len(list_images([tmp_path])[0]) == 1


def test_listing_nothing(tmp_path):
    with pytest.raises(PliantError, match="no such file or folder"):
        list_images([tmp_path / "nowhere"])
    with pytest.raises(PliantError, match="holds no images"):
        list_images([tmp_path])
