"""Makes a token file from text: `python -m paceline.data.text_to_tokens TEXT... --out train.bin`.

By default a token is a byte of UTF-8. `--tokenizer NAME_OR_FOLDER` takes one of Hugging Face's instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.data.sources.tokens import DTYPES
from paceline.errors import PacelineError, UserError

Encode = Callable[[str], Sequence[int]]
_LINES = 1000  # that are encoded together


def write_tokens(path: Path, ids: Iterable[Sequence[int]], *, vocabulary: int, **about: str) -> int:
    """Writes ids to `path` (.bin) and what is known of them beside it; returns how many."""
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    count = 0
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        for some in ids:
            array = np.asarray(some, np.int64)
            if array.size and not 0 <= array.min() <= array.max() < vocabulary:
                raise UserError(
                    f"the tokenizer gave an id outside of its {vocabulary} tokens", "check it"
                )
            file.write(array.astype(DTYPES[dtype]).tobytes())
            count += len(array)
    known = {"dtype": dtype, "vocabulary": vocabulary, "tokens": count, **about}
    path.with_suffix(".json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return count


def encode_files(files: Sequence[Path], encode: Encode) -> Iterator[Sequence[int]]:
    """The ids of the files' text, one after the other, a thousand lines at a time."""
    for file in files:
        try:
            with file.open(encoding="utf-8", newline="") as text:
                lines: list[str] = []
                for line in text:
                    lines.append(line)
                    if len(lines) == _LINES:
                        yield encode("".join(lines))
                        lines = []
                yield encode("".join(lines))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {file}: {error}", "give text in UTF-8") from error


def get_tokenizer(name: str) -> tuple[Encode, int]:
    """(encode, vocabulary) of `bytes`, or of one of Hugging Face's by name or folder."""
    if name == "bytes":
        return lambda text: list(text.encode()), 256
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise UserError(
            f"--tokenizer {name} needs the package transformers, which is not installed",
            "pip install 'paceline[hf]'",
        ) from error
    try:
        found = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no tokenizer {name}: {str(error).splitlines()[0]}", "check the name"
        ) from error
    return lambda text: found.encode(text, add_special_tokens=False), len(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.data.text_to_tokens", description="Makes a token file from text."
    )
    parser.add_argument("text", nargs="+", type=Path, help="text files, in UTF-8")
    parser.add_argument("--out", required=True, type=Path, help="the token file, such as train.bin")
    parser.add_argument(
        "--tokenizer", default="bytes", help="bytes, or Hugging Face's by name or folder"
    )
    arguments = parser.parse_args(argv)
    try:
        encode, vocabulary = get_tokenizer(arguments.tokenizer)
        ids = encode_files(arguments.text, encode)
        about = {"tokenizer": arguments.tokenizer}
        count = write_tokens(arguments.out, ids, vocabulary=vocabulary, **about)
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"{arguments.out}: {count:,} tokens of {vocabulary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
