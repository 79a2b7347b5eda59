"""The examples, as programs of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_many_streams_are_read_by_one_thread():
    program = ROOT / "pdbp-py" / "examples" / "many_streams.py"
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    assert run.stdout.splitlines()[-1].startswith("300 streams, ")


def test_video_scores_tell_blocky_and_blurred_clips():
    pytest.importorskip("numpy")
    pytest.importorskip("av")
    clips = [ROOT / "pdbp-video" / "clips" / f"bbb_cif{kind}.h264" for kind in ("", "_blocky", "_blurred")]
    program = ROOT / "pdbp-py" / "examples" / "video_scores.py"
    run = subprocess.run([sys.executable, program, *clips], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    rows = [line.split() for line in run.stdout.splitlines()[1:]]
    assert [(name, pictures) for name, pictures, *_ in rows] == [(clip.name, "132") for clip in clips]
    (sharp, smooth), (_, blocky), (blurred, _) = ([float(x) for x in scores] for _, _, *scores in rows)
    assert blocky > 2 * smooth and blurred < sharp / 2
