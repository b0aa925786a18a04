"""What reading an uploaded picture costs: `python bench/serving/decoding.py FOLDER [--rounds 15]`; no server is asked.

FOLDER has photographs, from which JPEGs and PNGs of many sizes are made. First the decoders that are installed, each
held to Pillow's pixels, as ratios to Pillow in the same rounds; then the steps from bytes to a classifier's numbers;
then scaled decoding: how far it is from plain decoding in levels of 255, and how many times as fast. Last, two threads
beside one, and what a thread that sleeps a millisecond at a time sees of them. All by one thread but for that.
"""

from __future__ import annotations

import argparse
import importlib
import io
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.preprocess import ImagePreprocess, Resample, decode_image

if TYPE_CHECKING:
    from PIL.Image import Image

SIZES = ((224, 224), (640, 480), (1920, 1080), (4000, 3000))
Pixels = NDArray[np.uint8]
Decoder = Callable[[bytes], Any]


def classifier(side: int = 224, shorter: int | None = 232, resample: Resample = "bilinear") -> ImagePreprocess:
    """How torchvision's ResNet-50 reads pictures, or another of its kind."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    sizes: Any = {"height": side, "width": side, "resize_shorter": shorter, "resample": resample}
    return ImagePreprocess(input="image", mode="RGB", mean=mean, std=std, **sizes)


def encoded(shown: Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    shown.save(buffer, kind, **{**({"quality": 88} if kind == "JPEG" else {}), **options})
    return buffer.getvalue()


def mosaic(photographs: list[Image], width: int, height: int) -> Image:
    """Pieces of photographs side by side: large, and as sharp as they are."""
    random = np.random.default_rng(width)
    made = photographs[0].resize((width, height))
    for top in range(0, height, 300):
        for left in range(0, width, 400):
            made.paste(photographs[random.integers(len(photographs))].crop((0, 0, 400, 300)), (left, top))
    return made


def decoders(kind: str) -> dict[str, Decoder]:
    """Those that are installed, by name: bytes to an image of Pillow's, or to an array of RGB."""
    from PIL.Image import fromarray

    found: dict[str, Decoder] = {
        "Pillow": decode_image,
        "Pillow, to an array": lambda data: np.asarray(decode_image(data)),
    }

    def add(name: str, package: str, decoder: Callable[[Any], Decoder]) -> None:
        try:
            found[name] = decoder(importlib.import_module(package))
        except (ImportError, OSError, RuntimeError) as error:
            print(f"{name} is left out: {str(error).splitlines()[0]}")

    if kind == "JPEG":
        add("simplejpeg", "simplejpeg", lambda held: held.decode_jpeg)
        add("simplejpeg, to an image", "simplejpeg", lambda held: lambda data: fromarray(held.decode_jpeg(data)))
        add("PyTurboJPEG", "turbojpeg", lambda held: held.TurboJPEG().decode)
        add("imagecodecs", "imagecodecs", lambda held: held.jpeg8_decode)
    else:
        add("pyspng", "pyspng", lambda held: held.load)
        add("pyspng, to an image", "pyspng", lambda held: lambda data: fromarray(held.load(data)))
        add("imagecodecs", "imagecodecs", lambda held: held.png_decode)
    add("opencv", "cv2", lambda held: lambda data: held.imdecode(np.frombuffer(data, np.uint8), held.IMREAD_COLOR_RGB))
    add("pyvips", "pyvips", lambda held: lambda data: held.Image.new_from_buffer(data, "").numpy())
    return found


def took(cases: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each case; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            started = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(held) for name, held in times.items()}


def compare_decoders(photograph: Image, kind: str, rounds: int) -> None:
    print(f"\n{kind}: time by Pillow's, and * where pixels are not Pillow's")
    known = decoders(kind)
    for size in SIZES:
        data = encoded(photograph.resize(size), kind)
        due = np.asarray(decode_image(data))
        cases = {name: partial(held, data) for name, held in known.items()}
        times = took(cases, rounds)
        told = [
            f"{name} {times[name] / times['Pillow']:.2f}{'*' * (not np.array_equal(np.asarray(held(data)), due))}"
            for name, held in known.items()
        ]
        print(
            f"{size[0]}x{size[1]}, {len(data) / 1024:.0f} KiB, Pillow {times['Pillow']:.2f} ms: {', '.join(told[1:])}"
        )


def time_steps(photograph: Image, rounds: int) -> None:
    print("\nFrom bytes to numbers, ms: decoded, resized and cropped, normalised; all of it; with scaled decoding")
    reader = classifier()
    for kind in ("JPEG", "PNG"):
        for size in SIZES:
            data = encoded(photograph.resize(size), kind)
            image = decode_image(data)
            pixels = np.zeros((1, reader.height, reader.width, 3), np.uint8)
            times = took(
                {
                    "decoded": partial(decode_image, data),
                    "applied": partial(reader.apply, image),
                    "normalised": partial(reader.normalize, pixels),
                    "all": partial(reader.read, data),
                    "scaled": partial(reader.read, data, scaled=True),
                },
                rounds,
            )
            resized = times["applied"] - times["normalised"]
            print(
                f"{kind} {size[0]}x{size[1]}: {times['decoded']:.2f}, {resized:.2f}, {times['normalised']:.2f}; "
                f"{times['all']:.2f}; {times['scaled']:.2f}"
            )


def compare_scaled(pictures: Mapping[str, Image], rounds: int) -> None:
    for reader in (classifier(), classifier(224, 256, "bicubic"), classifier(64, 64), classifier(224, None)):
        print(
            f"\nScaled decoding, {reader.resample} to {reader.resize_shorter or 'a square'}: max, mean, 99th percentile"
        )
        for name, shown in pictures.items():
            data = encoded(shown, "JPEG", quality=90)
            plain, scaled = (reader.read(data, scaled=held) for held in (False, True))
            if np.array_equal(plain, scaled):
                continue  # too small for it
            away = np.abs(scaled - plain) * np.array(reader.std).reshape(1, -1, 1, 1) / reader.scale
            cases = {"plain": partial(reader.read, data), "scaled": partial(reader.read, data, scaled=True)}
            times = took(cases, rounds)
            print(
                f"{name}, {shown.width}x{shown.height}: {away.max():.0f}, {away.mean():.2f}, "
                f"{np.percentile(away, 99):.0f}; {times['plain'] / times['scaled']:.1f} times as fast as "
                f"{times['plain']:.1f} ms"
            )


def watch_threads(photograph: Image, rounds: int) -> None:
    print("\nPictures read by threads at once: how many times what one reads, and a sleeper's waking late, ms")
    reader = classifier()
    for size in SIZES:
        data = encoded(photograph.resize(size), "JPEG")
        rates = {}
        for count in (1, 2):
            rates[count], late = read_at_once(reader, data, count, rounds * 0.1)
        print(f"{size[0]}x{size[1]}: 2 threads {rates[2] / rates[1]:.2f}; late p50 {late[0]:.2f}, p99 {late[1]:.2f}")


def read_at_once(reader: ImagePreprocess, data: bytes, count: int, seconds: float) -> tuple[float, tuple[float, float]]:
    """Pictures a second by `count` threads, and how late a thread wakes beside them that sleeps for a millisecond."""
    end, done = time.perf_counter() + seconds, [0] * count

    def work(number: int) -> None:
        while time.perf_counter() < end:
            reader.read(data)
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    late = []
    while (before := time.perf_counter()) < end:
        time.sleep(0.001)
        late.append((time.perf_counter() - before - 0.001) * 1e3)
    for thread in threads:
        thread.join()
    return sum(done) / seconds, (float(np.percentile(late, 50)), float(np.percentile(late, 99)))


def main(folder: Path, rounds: int) -> None:
    from PIL import Image as Pillow

    files = sorted(file for file in folder.iterdir() if file.suffix in (".jpg", ".jpeg", ".png"))
    named = {file.name: Pillow.open(file).convert("RGB") for file in files}
    first = next(iter(named.values()))
    for kind in ("JPEG", "PNG"):
        compare_decoders(first, kind, rounds)
    time_steps(first, rounds)
    mosaics = {
        f"mosaic {width}": mosaic(list(named.values()), width, height) for width, height in (*SIZES[2:], (4001, 2999))
    }
    compare_scaled({**named, f"{files[0].name} enlarged": first.resize((4000, 3000)), **mosaics}, rounds)
    watch_threads(first, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    told = parser.parse_args()
    main(told.folder, told.rounds)
