"""Contrast ratios as WCAG defines them, computed in the page from what is painted."""

# A function of a selector; returns one ratio for each element, backgrounds of all its parents laid over white.
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
