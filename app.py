"""Start the demo as a Space does: `python app.py`. HOST and PORT choose the address."""

import os

from specdemo.config import Settings
from specdemo.ui.build import launch

if __name__ == "__main__":
    host = os.environ.get("HOST") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT") or "7860"
    launch(Settings(), host, int(port))
