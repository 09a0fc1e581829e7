#!/usr/bin/env python3
"""Makes tests/fixtures/image and tests/fixtures/image_processor: small images, and what Pillow and transformers make of
them.

Needs Pillow 12 (12.3.0 wrote the files), numpy, torch and transformers (5.17.0). Writes

    image/*.jpg, *.png, *.webp    images in many forms
    image/bad_*                   files that are no images, damaged or refused ones (tests/image_test.cpp has the errors)
    image/expected.json           of each image: size as stored, channels, orientation, checksum of the upright pixels
    image/resized.json            checksums of resized images
    image_processor/*.json        configurations
    image_processor/expected      sizes, grids and checksums of rows, by configuration

    python scripts/make_image_fixtures.py [--out tests/fixtures]
"""

import argparse
import io
import json
import pathlib
import struct
import warnings
import zlib

import numpy as np
import PIL
from PIL import Image, ImageOps

warnings.simplefilter("ignore")


# Pictures


def picture(width, height, seed=0, channels=3):
    """Smooth colours with edges and some noise, so that filters, subsampling and rounding all show."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    layers = []
    for c in range(channels):
        wave = 96 * np.sin(x / (3.7 + c) + seed) + 64 * np.cos(y / (5.3 - c) + c) + 128
        wave += 60 * ((x // 5 + y // 7 + c) % 3 == 0) + rng.normal(0, 12, (height, width))
        layers.append(np.clip(wave, 0, 255).astype(np.uint8))
    return np.stack(layers, -1) if channels > 1 else layers[0]


def rgb(width, height, seed=0):
    return Image.fromarray(picture(width, height, seed))


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


# PNG files that Pillow does not write: all depths, filters, interlacing, chunks in any place.

COLOUR_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed_rows(samples, depth):
    """Rows of bytes of an array [height, width, samples]."""
    rows = []
    for row in samples.reshape(samples.shape[0], -1):
        if depth == 16:
            rows.append(row.astype(">u2").tobytes())
        elif depth == 8:
            rows.append(row.astype(np.uint8).tobytes())
        else:
            bits = "".join(format(int(v), f"0{depth}b") for v in row)
            bits += "0" * (-len(bits) % 8)
            rows.append(bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)))
    return rows


def filtered(rows, pixel_bytes):
    """Rows with the five filters of PNG in turn."""
    out, above = b"", None
    for number, row in enumerate(rows):
        above = above if above is not None and len(above) == len(row) else bytes(len(row))
        kind = number % 5
        line = bytearray()
        for i, value in enumerate(row):
            left = row[i - pixel_bytes] if i >= pixel_bytes else 0
            corner = above[i - pixel_bytes] if i >= pixel_bytes else 0
            guess = left + above[i] - corner
            paeth = min((left, above[i], corner), key=lambda v: abs(guess - v))
            line.append((value - [0, left, above[i], (left + above[i]) // 2, paeth][kind]) % 256)
        out += bytes([kind]) + bytes(line)
        above = row
    return out


def png(samples, depth, colour, interlaced=False, before=(), after=(), cuts=1):
    """A PNG file of an array [height, width, samples]; `before` and `after` are chunks around the pixels."""
    height, width, count = samples.shape
    assert count == COLOUR_SAMPLES[colour]
    pixel_bytes = max(1, count * depth // 8)
    if interlaced:
        parts = [samples[y::dy, x::dx] for x, y, dx, dy in ADAM7]
        raw = b"".join(filtered(packed_rows(part, depth), pixel_bytes) for part in parts if part.size)
    else:
        raw = filtered(packed_rows(samples, depth), pixel_bytes)
    data = zlib.compress(raw, 9)
    step = -(-len(data) // cuts)
    pixels = [chunk(b"IDAT", data[i : i + step]) for i in range(0, len(data), step)]
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(b"IHDR", head), *before, *pixels, *after, chunk(b"IEND", b"")])


def exif(orientation, order="<", kind=3, count=1, extra=()):
    """An EXIF block whose first directory has an orientation."""
    unit = {3: "H", 4: "L"}[kind]
    value = (struct.pack(order + unit, orientation) + bytes(4))[:4]
    entries = [struct.pack(order + "HHL", 274, kind, count) + value, *extra]
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "LH", 8, len(entries)) + b"".join(entries) + bytes(4)


def xmp(orientation):
    return f'<x:xmpmeta><rdf:Description tiff:Make="x" tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def raw_profile(block):
    text = (b"Exif\0\0" + block).hex()
    lines = [text[i : i + 72] for i in range(0, len(text), 72)]
    return b"\nexif\n" + f"{len(text) // 2:8d}".encode() + b"\n" + "\n".join(lines).encode() + b"\n"


# JPEG files that Pillow does not write


def segment(marker, data):
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def find_segment(data, markers):
    """Where the first segment of one of the kinds begins."""
    at = 2
    while data[at + 1] not in markers:
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return at


def patched(data, offset, *values):
    out = bytearray(data)
    out[offset : offset + len(values)] = bytes(values)
    return bytes(out)


def with_sampling(data, sampling):
    """The same bits read with another subsampling of colours; both must have as many blocks."""
    return patched(data, find_segment(data, {0xC0}) + 11, sampling)


def jpegs():
    photo, small = rgb(53, 41, 1), rgb(24, 17, 2)
    files = {
        "grey": saved(photo.convert("L"), "JPEG"),
        "444": saved(photo, "JPEG", quality=92, subsampling=0),
        "422": saved(photo, "JPEG", subsampling=1),
        "420": saved(photo, "JPEG", subsampling=2),
        "quality5": saved(photo, "JPEG", quality=5),
        "progressive": saved(photo, "JPEG", progressive=True),
        "progressive_444": saved(photo, "JPEG", progressive=True, subsampling=0, quality=95),
        "restart": saved(photo, "JPEG", restart_marker_blocks=2),
        "optimised": saved(photo, "JPEG", optimize=True),
        "kept_rgb": saved(photo, "JPEG", keep_rgb=True),
        "cmyk": saved(Image.fromarray(picture(37, 29, 3, 4), "CMYK"), "JPEG", quality=90),
        "one": saved(rgb(1, 1), "JPEG"),
        "thin": saved(rgb(3, 120, 4), "JPEG"),
        "wide": saved(rgb(131, 2, 4), "JPEG"),
    }
    square = rgb(32, 32, 5)
    files["440"] = with_sampling(saved(square, "JPEG", subsampling=1), 0x12)
    files["411"] = with_sampling(saved(square, "JPEG", subsampling=2), 0x41)
    adobe = find_segment(files["cmyk"], {0xEE})
    files["ycck"] = patched(files["cmyk"], adobe + 4 + 11, 2)
    files["cmyk_without_adobe"] = files["cmyk"][:adobe] + files["cmyk"][adobe + 16 :]
    # Of several pictures, as phones store them, the first counts.
    files["pictures"] = saved(photo, "MPO", save_all=True, append_images=[small])
    plain = saved(small, "JPEG")
    for orientation in range(1, 9):
        files[f"exif{orientation}"] = saved(small, "JPEG", exif=b"Exif\0\0" + exif(orientation))
    app1 = lambda data: segment(0xE1, data)
    name = b"http://ns.adobe.com/xap/1.0/\0"
    files["exif_big_endian"] = plain[:2] + app1(b"Exif\0\0" + exif(6, ">")) + plain[2:]
    files["exif_long"] = plain[:2] + app1(b"Exif\0\0" + exif(8, "<", 4)) + plain[2:]
    files["exif_cut"] = plain[:2] + app1(b"Exif\0\0" + exif(6)[:14]) + plain[2:]
    files["exif_zero"] = plain[:2] + app1(b"Exif\0\0" + exif(0)) + app1(name + xmp(6)) + plain[2:]
    split = exif(5, extra=[struct.pack("<HHLL", 305, 2, 40, 0)] * 4)
    files["exif_two_segments"] = plain[:2] + app1(b"Exif\0\0" + split[:20]) + app1(b"Exif\0\0" + split[20:]) + plain[2:]
    files["xmp"] = plain[:2] + app1(name + xmp(3)) + plain[2:]
    files["exif_before_xmp"] = plain[:2] + app1(name + xmp(3)) + app1(b"Exif\0\0" + exif(8)) + plain[2:]
    # 0xff may fill the gap before a marker; other bytes are passed over with a warning.
    files["fill"] = plain[:2] + b"\xff\xff\xff" + plain[2:]
    tables = find_segment(plain, {0xDB})
    files["junk"] = plain[:tables] + b"\x00\x12\x34" + plain[tables:]
    files["behind"] = plain + b"more bytes behind its end"
    return {f"{key}.jpg": value for key, value in files.items()}


def pngs():
    rng = np.random.default_rng(7)
    colour_image = picture(21, 13, 8)
    grey = picture(21, 13, 9, 1)[..., None]
    files = {}
    for depth in (1, 2, 4, 8, 16):
        top = 2**depth
        samples = rng.integers(0, top, (13, 21, 1)) if depth != 8 else grey
        files[f"grey{depth}"] = png(samples, depth, 0)
        files[f"grey{depth}_interlaced"] = png(samples, depth, 0, True)
        if depth != 16:
            palette = chunk(b"PLTE", rng.integers(0, 256, 3 * top, dtype=np.uint8).tobytes())
            alpha = chunk(b"tRNS", bytes([0, 128][: min(2, top)]))
            indices = rng.integers(0, top, (13, 21, 1))
            files[f"palette{depth}"] = png(indices, depth, 3, before=[palette])
            files[f"palette{depth}_clear"] = png(indices, depth, 3, depth == 2, before=[palette, alpha])
    deep = rng.integers(0, 65536, (13, 21, 4))
    flat = np.concatenate([colour_image, grey], -1)
    files |= {
        "rgb8": png(colour_image, 8, 2, cuts=5),
        "rgb8_interlaced": png(colour_image, 8, 2, True),
        "rgb16": png(deep[..., :3], 16, 2),
        "rgba8": png(flat, 8, 6),
        "rgba16": png(deep, 16, 6, True),
        "grey_alpha8": png(flat[..., 2:], 8, 4),
        "grey_alpha16": png(deep[..., :2], 16, 4),
        "grey8_clear": png(grey, 8, 0, before=[chunk(b"tRNS", struct.pack(">H", int(grey[0, 0, 0])))]),
        "rgb8_clear": png(colour_image, 8, 2, before=[chunk(b"tRNS", struct.pack(">HHH", *colour_image[0, 0].tolist()))]),
        "gamma": png(colour_image, 8, 2, before=[chunk(b"gAMA", struct.pack(">I", 100000)), chunk(b"sRGB", b"\0")]),
        "profile": png(colour_image, 8, 2, before=[chunk(b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))]),
        "short_palette": png(rng.integers(0, 7, (5, 9, 1)), 4, 3, before=[chunk(b"PLTE", bytes(range(40, 55)))]),
        "one": png(colour_image[:1, :1], 8, 2),
        "one_interlaced": png(colour_image[:1, :1], 8, 2, True),
        "wide": png(picture(150, 3, 2), 8, 2),
        "still_of_one": png(colour_image, 8, 2, before=[chunk(b"acTL", struct.pack(">II", 1, 0))]),
        "exif": png(colour_image, 8, 2, before=[chunk(b"eXIf", exif(6, ">"))]),
        "exif_behind": png(colour_image, 8, 2, after=[chunk(b"eXIf", exif(7))]),
        "raw_profile": png(colour_image, 8, 2, before=[chunk(b"tEXt", b"Raw profile type exif\0" + raw_profile(exif(8)))]),
        "raw_profile_packed": png(
            colour_image,
            8,
            2,
            before=[chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw_profile(exif(5))))],
        ),
        "xmp": png(colour_image, 8, 2, before=[chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(3))]),
        "xmp_packed": png(
            colour_image, 8, 2, before=[chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0en\0x\0" + zlib.compress(xmp(6)))]
        ),
    }
    files["noise"] = saved(Image.fromarray(rng.integers(0, 256, (61, 97, 3), dtype=np.uint8)), "PNG")
    return {f"{key}.png": value for key, value in files.items()}


def webps():
    photo = rgb(45, 31, 10)
    clear = Image.fromarray(picture(45, 31, 11, 4), "RGBA")
    files = {
        "lossy": saved(photo, "WEBP", quality=80),
        "lossy_low": saved(photo, "WEBP", quality=3),
        "lossless": saved(photo, "WEBP", lossless=True),
        "lossy_alpha": saved(clear, "WEBP", quality=70),
        "lossless_alpha": saved(clear, "WEBP", lossless=True, exact=True),
        "few_colours": saved(photo.quantize(7).convert("RGB"), "WEBP", lossless=True),
        "one": saved(rgb(1, 1), "WEBP"),
        "exif": saved(photo, "WEBP", exif=b"Exif\0\0" + exif(6)),
        "xmp": saved(photo, "WEBP", lossless=True, xmp=xmp(5)),
    }
    return {f"{key}.webp": value for key, value in files.items()}


def bad_files():
    """Files without an image that is read. What is expected of each is said in tests/image_test.cpp."""
    photo = rgb(24, 24, 12)
    jpeg, progressive = saved(photo, "JPEG"), saved(photo, "JPEG", progressive=True)
    colours = picture(24, 24, 12)
    image, webp = png(colours, 8, 2), saved(photo, "WEBP", lossless=True)
    frame, scan = find_segment(jpeg, {0xC0}), find_segment(jpeg, {0xDA})
    pixels = image.index(b"IDAT")
    frames = [photo, rgb(24, 24, 13)]
    last_scan = progressive.rindex(b"\xff\xda")
    head = lambda *values: chunk(b"IHDR", struct.pack(">IIBBBBB", *values))
    canvas = bytearray(saved(Image.fromarray(picture(24, 24, 1, 4), "RGBA"), "WEBP", quality=50))
    canvas[24] += 1
    files = {
        "empty": b"",
        "html": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
        "text": b"cats/1.jpg\ncats/2.jpg\n",
        "svg": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="3" height="3"/>\n',
        "gif": saved(photo.quantize(4), "GIF"),
        "bmp": saved(rgb(3, 3), "BMP"),
        "tiff": saved(rgb(3, 3), "TIFF"),
        "heic": struct.pack(">I", 24) + b"ftypheic" + bytes(4) + b"mif1heic",
        "avif": struct.pack(">I", 24) + b"ftypavif" + bytes(4) + b"mif1avif",
        "mp4": struct.pack(">I", 24) + b"ftypisom" + bytes(4) + b"isomavc1",
        "pdf": b"%PDF-1.7\n",
        "zip": b"PK\3\4" + bytes(20),
        "bytes": bytes(range(200, 232)),
        "jpeg_cut_header": jpeg[: frame + 5],
        "jpeg_cut_scan": jpeg[: scan + (len(jpeg) - scan) // 2],
        "jpeg_without_end": jpeg[:-2],
        "jpeg_without_frame": jpeg[:frame] + jpeg[scan:],
        "jpeg_12_bits": patched(jpeg, frame + 4, 12),
        "jpeg_lossless": patched(jpeg, frame + 1, 0xC3),
        "jpeg_two_channels": patched(jpeg, frame + 9, 2),
        "jpeg_bomb": patched(jpeg, frame + 5, 0xFF, 0xDC, 0xFF, 0xDC),
        "jpeg_no_lines": patched(jpeg, frame + 5, 0, 0),
        "jpeg_two_frames": jpeg[:frame] + jpeg[frame:scan] + jpeg[frame:],
        "jpeg_without_tables": jpeg[:2] + jpeg[frame:],
        "jpeg_scans": progressive[:last_scan] + progressive[last_scan:-2] * 150 + b"\xff\xd9",
        "png_cut": image[: len(image) // 2],
        "png_without_end": image[:-12],
        "png_checksum": patched(image, len(image) - 13, image[-13] ^ 1),
        "png_zlib": png(colours, 8, 2).replace(
            image[pixels - 4 : -12], chunk(b"IDAT", zlib.compress(bytes(100))[:-4] + bytes(4))
        ),
        "png_few_lines": image.replace(image[pixels - 4 : -12], chunk(b"IDAT", zlib.compress(bytes(73 * 9)))),
        "png_bomb": image[:8] + head(50000, 50000, 8, 2, 0, 0, 0) + image[33:],
        "png_depth": image[:8] + head(24, 24, 4, 2, 0, 0, 0) + image[33:],
        "png_no_pixels": image[:33] + image[-12:],
        "png_no_palette": png(colours[..., :1], 8, 3),
        "png_animated": saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "webp_cut": webp[: len(webp) // 2],
        "webp_cut_pixels": patched(webp[:-60], 4, *struct.pack("<I", len(webp) - 68)),
        "webp_damaged": patched(webp, 26, *([255] * 12)),
        "webp_animated": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "webp_canvas": bytes(canvas),
        "webp_no_pixels": b"RIFF" + struct.pack("<I", 4) + b"WEBP",
    }
    return {f"bad_{key}": value for key, value in files.items()}


def checksum(array):
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def pillow_pixels(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":  # Pillow clips such grey at 255
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, -1)
    return np.asarray(image.convert("RGB"))


def expected_of(name, data):
    image = Image.open(io.BytesIO(data))
    image.load()
    pixels = pillow_pixels(data)
    return {
        "file": name,
        "width": image.width,
        "height": image.height,
        "orientation": image.getexif().get(274, 1),
        "shown": [pixels.shape[1], pixels.shape[0]],
        "pixels": checksum(pixels),
    }


def resized(files):
    filters = {"lanczos": 1, "bilinear": 2, "bicubic": 3}
    cases = []
    sizes = [(97, 61), (97, 30), (48, 61), (1, 1), (31, 7), (196, 122), (200, 40), (13, 150), (98, 60), (96, 62), (28, 28)]
    for name in ("noise.png", "444.jpg", "thin.jpg", "one.png"):
        image = Image.open(io.BytesIO(files[name])).convert("RGB")
        for width, height in sizes:
            for kind, number in filters.items():
                pixels = np.asarray(image.resize((width, height), number))
                cases.append([name, width, height, number, checksum(pixels)])
    return cases


# Processors

QWEN = {
    "do_convert_rgb": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "processor_class": "Qwen2VLProcessor",
}
CONFIGS = {
    "qwen2_vl": QWEN | {"min_pixels": 3136, "max_pixels": 12845056},
    "qwen2_vl_class": {"image_processor_type": "Qwen2VLImageProcessorFast"},
    "qwen2_vl_small": {
        "image_processor": QWEN | {"size": {"shortest_edge": 3136, "longest_edge": 50176}, "resample": 3, "data_format": "channels_first"},
        "processor_class": "Qwen2_5_VLProcessor",
    },
    "minicpm": {
        "image_processor_type": "MiniCPMVImageProcessor",
        "max_slice_nums": 9,
        "scale_resolution": 448,
        "patch_size": 14,
        "image_feature_size": 96,
        "slice_mode": True,
        "use_image_id": False,
        "im_start": "<image>",
        "im_end": "</image>",
        "slice_start": "<slice>",
        "slice_end": "</slice>",
        "unk": "<unk>",
        "im_id_start": "<image_id>",
        "im_id_end": "</image_id>",
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "version": 2.5,
    },
    # Slices of 56 pixels a side, so that small pictures have them.
    "minicpm_small": {"image_processor_type": "MiniCPMVImageProcessor", "max_slice_nums": 6, "scale_resolution": 56},
}


def reference_processors():
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class MiniCpm25(MiniCPMV4_6ImageProcessorPil):
        """Version 4.6 slices as 2.5 does, but for multiples of four patches instead of one."""

        def find_best_resize(self, image_size, scale_resolution, patch_size, allow_upscale=False):
            sizes = super().find_best_resize(image_size, scale_resolution, patch_size / 4, allow_upscale)
            return tuple(map(int, sizes))

    qwen_size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}

    def made(name):
        config = CONFIGS[name].get("image_processor", CONFIGS[name])
        options = {key: value for key, value in config.items() if key not in ("image_processor_type", "processor_class")}
        kind = config["image_processor_type"]
        if kind.startswith("MiniCPM"):
            return MiniCpm25(**{k: options[k] for k in ("max_slice_nums", "scale_resolution") if k in options})
        # An instance with bounds writes them into its class's own dictionary.
        Qwen2VLImageProcessorPil.size = dict(qwen_size)
        return Qwen2VLImageProcessorPil(**options)

    return {name: made(name) for name in CONFIGS}


def patch_rows(pixels, patch=14):
    """Rows [patches, 3 * patch * patch] of an array [3, height, width]."""
    channels, height, width = pixels.shape
    cut = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return cut.transpose(1, 3, 0, 2, 4).reshape(-1, channels * patch * patch)


def strip_rows(strip, patch=14):
    """The same of MiniCPM's strip [3, patch, patches * patch]."""
    return strip.reshape(3, patch, -1, patch).transpose(2, 0, 1, 3).reshape(-1, 3 * patch * patch)


def rows_of(name, processor, image):
    out = processor(images=[image], return_tensors="np")
    if name.startswith("qwen"):
        return out["pixel_values"], {"grid": out["image_grid_thw"][0, 1:].tolist()}
    return strip_rows(out["pixel_values"][0]), {
        "targets": out["target_sizes"].tolist(),
        "slices": [int(v) for v in out["grids"][0]],
    }


def omnilmm_rows(image, side):
    """As torchvision's Resize, ToTensor and Normalize do with a Pillow image."""
    import torch

    pixels = np.array(image.resize((side, side), Image.Resampling.BICUBIC))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32).div(255)
    mean, deviation = torch.tensor(QWEN["image_mean"]), torch.tensor(QWEN["image_std"])
    return patch_rows(tensor.sub(mean[:, None, None]).div(deviation[:, None, None]).numpy())


def row_cases(files, processors):
    cases = []
    for file in ("444.jpg", "noise.png", "exif6.jpg", "lossy.webp", "wide.png", "one.png"):
        image = Image.fromarray(pillow_pixels(files[file]))
        outs = {name: rows_of(name, p, image) for name, p in processors.items()}
        outs["omnilmm"] = (omnilmm_rows(image, 140), {})
        for name, (rows, shape) in outs.items():
            rows = np.ascontiguousarray(rows, np.float32)
            cases.append({"config": name, "file": file, "patches": len(rows), "rows": checksum(rows)} | shape)
            cases[-1]["begin"] = [float(v) for v in rows.reshape(-1)[:4]]
    return cases


def some_sizes(count):
    rng = np.random.default_rng(3)
    sizes = [(70, 28), (126, 28), (70, 70), (1, 1), (1, 200), (200, 1), (28, 28), (448, 448), (449, 448), (1920, 1080)]
    sizes += [(4000, 3000), (768, 768), (1344, 1344), (512, 512), (640, 480), (1024, 1024), (10000, 50), (3024, 4032)]
    while len(sizes) < count:
        sides = np.exp(rng.uniform(0, 8.6, 2)).astype(int)
        if max(sides) <= 200 * min(sides):
            sizes.append((int(sides[0]), int(sides[1])))
    return sizes


def size_cases(processors):
    """By configuration: [width, height, what becomes of it]."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    cases = {}
    for name in ("qwen2_vl", "qwen2_vl_class", "qwen2_vl_small"):
        size = processors[name].size
        least, most = size["shortest_edge"], size["longest_edge"]
        cases[name] = [[w, h, *smart_resize(h, w, 28, least, most)[::-1]] for w, h in some_sizes(250)]
    for name in ("minicpm", "minicpm_small"):
        processor = processors[name]
        side, most = processor.scale_resolution, processor.max_slice_nums
        cases[name] = []
        for w, h in some_sizes(400):
            grid = processor.get_sliced_grid((h, w), most, side)
            overview = processor.find_best_resize((h, w), side, 14, grid is None)
            refined = processor.get_refine_size((h, w), grid, side, 14, True) if grid else (0, 0)
            grid = [int(v) for v in grid or (0, 0)]
            cases[name].append([w, h, *overview[::-1], *grid[::-1], *map(int, refined[::-1])])
    return cases


def write_json(path, value):
    path.write_text(json.dumps(value, separators=(",", ":")).replace("},{", "},\n{").replace("],[", "],\n[") + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures"))
    out = parser.parse_args().out
    assert PIL.__version__.startswith("12."), f"Pillow is {PIL.__version__}, expected 12: 13 resizes in another order"
    images, processors = out / "image", out / "image_processor"
    for folder in (images, processors):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    files = jpegs() | pngs() | webps()
    for name, data in (files | bad_files()).items():
        (images / name).write_bytes(data)
    write_json(images / "expected.json", [expected_of(name, data) for name, data in files.items()])
    write_json(images / "resized.json", resized(files))
    for name, config in CONFIGS.items():
        (processors / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")
    references = reference_processors()
    write_json(processors / "expected_rows.json", row_cases(files, references))
    write_json(processors / "expected_sizes.json", size_cases(references))


if __name__ == "__main__":
    main()
