"""Who looks at a page."""

import gradio as gr


def is_local(request: gr.Request) -> bool:
    """Whether the page is open in a browser on this very machine."""
    host = request.client.host if request.client else ""
    return host in ("127.0.0.1", "::1", "localhost")
