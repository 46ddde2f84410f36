"""`paceline data`: counts, the picture, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands import paceline


def test_counts_and_the_picture(tmp_path: Path) -> None:
    counts = paceline("data", "--set", "data.augment=flip", folder=tmp_path)
    assert (counts.code, list(tmp_path.iterdir())) == (0, [])
    assert "train: 1,437 samples" in counts.out
    shown = paceline("data", "--show", "--limit", "200", folder=tmp_path)
    assert shown.code == 0, shown.err
    assert {p.name for p in (tmp_path / "data-digits").iterdir()} == {"data.json", "data.png"}
    assert "wrote data-digits/data.png" in shown.out


def test_what_it_refuses(tmp_path: Path) -> None:
    for line, said in (
        (["--limit", "5"], "--out and --limit belong to --show"),
        (["--show", "--limit", "few"], "--limit 'few' is no number of samples"),
    ):
        done = paceline("data", *line, folder=tmp_path)
        assert (done.code, said in done.err) == (2, True)
    (tmp_path / "file").write_text("")
    done = paceline("data", "--show", "--limit", "9", "--out", "file/x", folder=tmp_path)
    assert (done.code, "the folder file/x cannot be made" in done.err) == (2, True)
    done = paceline("data", "--set", "data.augment=rand-agument", folder=tmp_path)
    assert (done.code, "did you mean 'rand-augment'?" in done.err) == (2, True)
