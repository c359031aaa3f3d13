"""How a page looks to those who see little or hold a phone: faults that axe finds, contrast, what leaves the screen."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

PHONE = 380  # pixels


def faults(page: Page, context: str | None = None) -> list[tuple[str, str]]:
    """What axe calls serious or critical, as (rule, element); context: a selector of what is looked at."""
    found = Axe().run(page, context=context).response["violations"]
    return [
        (one["id"], node["html"]) for one in found if one["impact"] in ("serious", "critical") for node in one["nodes"]
    ]


def seen_on_a_phone(page: Page, parts: str) -> int:
    """How many elements of a selector a phone shows. Fails where one reaches beyond its edges, where anything scrolls
    sideways, and where the text of a dropdown runs under its arrow."""
    page.set_viewport_size({"width": PHONE, "height": 800})
    page.wait_for_timeout(500)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE
    boxes = [part.bounding_box() for part in page.locator(parts).all()]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE for box in boxes)
    assert page.evaluate(UNDER_ARROWS) == []
    return len(boxes)


UNDER_ARROWS = """() => [...document.querySelectorAll("[role=combobox]")].filter((field) => field.checkVisibility())
  .filter((field) => {
    let around = field.parentElement;
    while (!around.querySelector("svg")) around = around.parentElement;
    const end = field.getBoundingClientRect().right - parseFloat(getComputedStyle(field).paddingRight);
    return end > around.querySelector("svg").getBoundingClientRect().left;
  }).map((field) => field.value)"""

# Contrast ratios as WCAG defines them, from what is painted: a function of a selector that returns one ratio for each
# element, the backgrounds of all its parents laid over white.
CONTRASTS = """(selector) => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const lay = (colour) => {
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const parts = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
      .map((part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
    return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
  };
  return [...document.querySelectorAll(selector)].map((node) => {
    const chain = [];
    for (let part = node; part; part = part.parentElement) chain.unshift(part);
    let back = lay("white");
    for (const part of chain) back = lay(getComputedStyle(part).backgroundColor);
    const front = lay(getComputedStyle(node).color);
    return (Math.max(front, back) + .05) / (Math.min(front, back) + .05);
  });
}"""
