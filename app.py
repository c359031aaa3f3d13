"""Start the demo as a Space does: `python app.py`. HOST and PORT choose the address."""

import os
import sys

from specdemo.config import ConfigError, Settings, read
from specdemo.ui.build import launch
from specdemo.ui.show import Play, play


def lent(settings: Settings) -> Play | None:
    """On ZeroGPU: `play` on a GPU that it lends for each race. None elsewhere; only ZeroGPU sets the variable."""
    if os.environ.get("SPACES_ZERO_GPU", "").lower() not in ("1", "t", "true"):
        return None
    import spaces  # before anything touches CUDA: it puts parts of torch aside in this process

    lend = spaces.GPU(duration=settings.space.targets.zerogpu.duration_s)
    played: Play = lend(play)
    return played


if __name__ == "__main__":
    host = os.environ.get("HOST") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT") or "7860"
    try:
        settings = read()
    except ConfigError as error:
        sys.exit(f"specdemo: {error}")
    launch(settings, host, int(port), lent=lent(settings))
