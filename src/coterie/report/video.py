"""Videos and pictures of generated faces: always marked, always with their origin in the file.

The mark is part of the picture, not a strip beside it that a crop would remove. It can be left out only with a stated
reason, which is written into the file instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.report.letters import lettered

MARK = "AI-GENERATED"

Pixels = npt.NDArray[np.uint8]  # [frames, height, width, 3]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a video comes from; written into the container."""

    made_by: str
    run: str
    model_hash: str
    time: str = ""  # ISO 8601; now, where it is not given

    def __post_init__(self) -> None:
        for name in ("made_by", "run", "model_hash"):
            if not getattr(self, name):
                raise ValueError(f"A video's provenance needs '{name}', found nothing. Say who made it, in which run, with which model.")
        object.__setattr__(self, "time", self.time or datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True, eq=False)
class Panel:
    """One of the clips side by side. `caption` stands at the top; generated ones also carry the mark."""

    frames: Pixels
    caption: str
    generated: bool


def write_video(
    path: Path, panels: Sequence[Panel], *, frames_per_second: int, provenance: Provenance, sound: npt.NDArray[np.int16] | None = None,
    sample_rate: int = 8000, enlarge: int = 8, unmarked_because: str | None = None,
) -> Path:  # fmt: skip
    """An H.264 video of the panels side by side, with the sound as AAC."""
    av = _av()
    pictures = np.concatenate([drawn(panel, enlarge, unmarked_because) for panel in panels], axis=2)
    pictures = pictures[:, : pictures.shape[1] // 2 * 2, : pictures.shape[2] // 2 * 2]  # H.264 wants even sides
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with av.open(str(partial), "w", format="mp4", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(tags(provenance, panels, unmarked_because))
        stream = container.add_stream("libx264", rate=frames_per_second, options={"crf": "18"})
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        voice = None if sound is None else container.add_stream("aac", rate=sample_rate, layout="mono")
        for place, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, frames_per_second)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if voice is not None and sound is not None:
            spoken = av.AudioFrame.from_ndarray(sound[None].astype(np.float32) / 32768.0, format="fltp", layout="mono")
            spoken.rate, spoken.pts, spoken.time_base = sample_rate, 0, Fraction(1, sample_rate)
            container.mux(voice.encode(spoken))
            container.mux(voice.encode())
    partial.replace(path)
    return path


def write_sheet(
    path: Path, panels: Sequence[Panel], *, provenance: Provenance, enlarge: int = 5, columns: int = 8,
    unmarked_because: str | None = None,
) -> Path:  # fmt: skip
    """A PNG of `columns` frames of every panel, one panel below the other, then of the next frames."""
    image, info = _pillow()
    pictures = [drawn(panel, enlarge, unmarked_because) for panel in panels]
    columns = min(columns, len(pictures[0]))
    empty = -len(pictures[0]) % columns
    pictures = [np.concatenate([shown, np.zeros_like(shown[:empty])]) for shown in pictures]
    rows = [
        np.concatenate(list(shown[start : start + columns]), axis=1)
        for start in range(0, len(pictures[0]), columns)
        for shown in pictures
    ]
    text = info()
    for name, value in tags(provenance, panels, unmarked_because).items():
        text.add_text(name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    image.fromarray(np.concatenate(rows, axis=0)).save(partial, format="PNG", pnginfo=text)
    partial.replace(path)
    return path


def tags(provenance: Provenance, panels: Sequence[Panel], unmarked_because: str | None) -> Mapping[str, str]:
    """What stands in the file: everything once as JSON in "comment", which every container keeps."""
    generated = any(panel.generated for panel in panels)
    told: dict[str, Any] = {**asdict(provenance), "ai_generated": generated, "visible_mark": MARK if unmarked_because is None else None}
    if unmarked_because is not None:
        told["unmarked_because"] = unmarked_because
    return {"comment": json.dumps(told), "artist": provenance.made_by, "title": provenance.run, "date": provenance.time}


def check_reason(unmarked_because: str | None) -> None:
    if unmarked_because is not None and not unmarked_because.strip():
        raise ValueError("A video without a mark needs a reason, found an empty one. Say why, or leave the mark on.")


def drawn(panel: Panel, enlarge: int, unmarked_because: str | None = None) -> Pixels:
    """The panel's frames, enlarged, with caption and mark."""
    if panel.frames.ndim != 4 or panel.frames.shape[3] != 3 or panel.frames.dtype != np.uint8:
        raise ValueError(
            f"A panel shows bytes of shape [frames, height, width, 3], found {panel.frames.dtype} of shape "
            f"{list(panel.frames.shape)}. Convert the frames first."
        )
    check_reason(unmarked_because)
    pictures = panel.frames.repeat(enlarge, axis=1).repeat(enlarge, axis=2)
    written = [(panel.caption, False)]
    if panel.generated and unmarked_because is None:
        written.append((MARK, True))
    for text, at_bottom in written:
        letters = lettered(text, pictures.shape[2])
        edge = pictures.shape[1] - letters.shape[0] if at_bottom else 0
        area = pictures[:, edge : edge + letters.shape[0], : letters.shape[1]]
        area[:] = np.where(letters[..., None], 255, area // 4)  # white on a darkened ground: legible on any picture
    return pictures


def _av() -> ModuleType:
    try:
        import av
    except ImportError:
        raise ValueError("Writing a video needs PyAV. Install it with: pip install 'coterie[talk]'") from None
    module: ModuleType = av
    return module


def _pillow() -> tuple[ModuleType, Any]:
    try:
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo
    except ImportError:
        raise ValueError("Writing a picture needs Pillow. Install it with: pip install 'coterie[vision]'") from None
    return Image, PngInfo
