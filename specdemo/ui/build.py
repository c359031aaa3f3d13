"""The whole page, and how it is served."""

from __future__ import annotations

import logging
import os
from typing import Any

# Nothing of this page is to be asked of, or told to, another machine; Gradio reads this when it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr  # noqa: E402
from fastapi import Request  # noqa: E402
from fastapi.responses import JSONResponse  # noqa: E402

from specdemo.config import Settings  # noqa: E402
from specdemo.measure.trace import MAX_BYTES  # noqa: E402
from specdemo.ui.bench_tab import BenchTab  # noqa: E402
from specdemo.ui.links import opened  # noqa: E402
from specdemo.ui.race_tab import DEVICE, RaceTab  # noqa: E402
from specdemo.ui.replay_tab import ReplayTab  # noqa: E402
from specdemo.ui.show import Play, play  # noqa: E402
from specdemo.ui.texts import text  # noqa: E402
from specdemo.ui.warmup import Warmup  # noqa: E402

FONT = ["system-ui", "sans-serif"]  # fonts that are on the visitor's machine: nothing is fetched
MONO = ["ui-monospace", "monospace"]
CSS = "[role=combobox] { text-overflow: ellipsis; padding-inline-end: 1.5rem !important }"  # clear of its arrow
TEMPORARY_S = 3600  # saved races are kept so long
HOUSEKEEPING = (TEMPORARY_S, TEMPORARY_S)
UNREADABLE = (TypeError, ValueError, LookupError, AttributeError)  # what a malformed call makes Gradio raise

log = logging.getLogger(__name__)


def build(settings: Settings, draft: str | None = None, lent: Play | None = None) -> gr.Blocks:
    """The page as Blocks, its warm-up already begun. draft: a local draft that replaces the pair's own.

    lent: `play`, wrapped so that it runs where a GPU is lent for it; this process then loads no model.
    """
    warmup = Warmup(settings, draft, fetch_only=lent is not None)
    with gr.Blocks(title=text("title"), delete_cache=HOUSEKEEPING, analytics_enabled=False) as page:
        gr.Markdown(f"# {text('title')}\n{text('subtitle')}")
        race, replay = RaceTab(settings, warmup, draft, lent or play), ReplayTab()
        with gr.Tabs() as tabs:
            with gr.Tab(text("race"), id="race"):
                race.build()
            if lent is None:  # where a GPU is lent by the race, none is there for a benchmark
                with gr.Tab(text("benchmark"), id="benchmark"):
                    BenchTab(settings, draft, DEVICE).build()
            with gr.Tab(text("replay"), id="replay"):
                replay.build()

        def on_load(request: gr.Request) -> list[Any]:
            return opened(request, settings, race.fields)

        link = gr.Textbox(visible="hidden")  # the race to replay that the page's address names
        preset = [tabs, link, race.theatre, *race.fields.values()]
        loaded = page.load(on_load, None, preset, queue=False, show_progress="hidden", api_visibility="private")
        replay.follow(loaded, link)
    # Closed: a request straight to an endpoint would pass the queue by.
    page.queue(max_size=settings.queue.max_size, default_concurrency_limit=1, api_open=False)
    # Gradio looks into its queue a thousand times a second, on the interpreter's lock that the engine needs as well:
    # measured at 15% of a path's speed on two cores.
    page._queue.sleep_when_free = 0.05
    return page


def launch(
    settings: Settings, host: str, port: int, draft: str | None = None, lent: Play | None = None, **options: Any
) -> None:
    """Serve the page until the process ends; `options` go to gr.Blocks.launch."""
    build(settings, draft, lent).launch(**serving(host, port) | options)


def theme() -> gr.themes.Base:
    """Gradio's default in teal, with the contrast that small text and buttons need (WCAG AA)."""
    base = gr.themes.Default(primary_hue="teal", neutral_hue="slate", font=FONT, font_mono=MONO)
    return base.set(
        body_text_color_subdued="*neutral_500",
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_cancel_background_fill="#dc2626",
        button_cancel_background_fill_hover="#b91c1c",
    )


def serving(host: str, port: int) -> dict[str, Any]:
    """How the page is served, here and in the tests: private, offline, errors in our own words only."""
    return {
        "server_name": host,
        "server_port": port,
        "theme": theme(),
        "css": CSS,
        "max_file_size": MAX_BYTES,
        "show_error": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["api"],
        "app_kwargs": {"exception_handlers": dict.fromkeys(UNREADABLE, unreadable)},
    }


async def unreadable(request: Request, error: Exception) -> JSONResponse:
    """Gradio trips over calls that do not fit an endpoint; the caller gets a sentence, the log gets the rest."""
    log.warning("a call to %s cannot be read", request.url.path, exc_info=error)
    return JSONResponse({"detail": text("unreadable")}, status_code=400)
