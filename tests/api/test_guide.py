"""The script in the guide runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs/guide/from-python.md"


def test_the_script_from_python_runs(tmp_path: Path) -> None:
    script = GUIDE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    checks = (
        "\nassert result.status == 'finished' and result.metrics['best_f1'] > 0.9, result.metrics"
        "\nassert found.metrics['f1'] == result.metrics['best_f1'], found.metrics"
        "\nassert {'confidence', 'error_bits', 'accuracy'} <= set(found.metrics)"
        "\nassert found.per_class[0]['name'] == 'across' and found.confusion.sum() == 60"
        "\nassert (found.folder / 'confusion.csv').exists()"
        "\nassert predicted.values.shape == (60, 3)"
    )
    (tmp_path / "script.py").write_text(script + checks, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "predictions.csv").read_text().startswith("path,class,probability,p(across)")
