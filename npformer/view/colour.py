"""Colours: a hue for each head, for any number of heads, and the two colour scales of all pictures.

The page (through JSON), the SVG and the tests share these colours. `svg.py` draws with them, and `document.py` passes
the colours to the browser.
"""

from __future__ import annotations

from math import cos, radians, sin, sqrt

Ramp = tuple[str, ...]

# For weights in 0..1, from the page's background to the strongest colour. One hue with monotone lightness is safe for
# every kind of colour blindness and in grey print.
SEQUENTIAL: dict[str, Ramp] = {
    "light": ("#f5f7fa", "#cfe0f1", "#8fbce2", "#4590cc", "#1a62a6", "#0a3a72", "#06234a"),
    "dark": ("#1b2029", "#1f4369", "#2469a6", "#3b95db", "#7fc1f3", "#c0e2fb", "#f4fbff"),
}

# For signed numbers, negative to positive. Blue and orange remain distinguishable with protanopia, deuteranopia and
# tritanopia, and larger magnitudes contrast more with the background, so magnitudes are visible even without the hue.
DIVERGING: dict[str, Ramp] = {
    "light": ("#08427f", "#2c7bbd", "#9fc8e8", "#f5f5f3", "#f5c08a", "#d2711b", "#7f3800"),
    "dark": ("#a8d4ff", "#4b96e0", "#2a4f7c", "#1f232b", "#7a4a1f", "#dc8a38", "#ffd2a0"),
}

# Lightness of head colours in OKLCH, with a contrast of at least 3:1 against the page in either theme (tested). Heads
# with numbers that differ by a Fibonacci number (8, 13, 21, 34, ...) have similar hues. A cycle of three lightnesses
# distinguishes heads at a distance of 8 or 13, and a cycle of four distinguishes heads at a distance of 13, 21, 34, 55
# or 89.
_FEW = {"light": (0.60, 0.45, 0.65), "dark": (0.72, 0.62, 0.84)}
_MANY = {"light": (0.57, 0.40, 0.65, 0.48), "dark": (0.70, 0.62, 0.87, 0.78)}
_CHROMA = 0.15
_GOLDEN = 180.0 * (3.0 - sqrt(5.0))


def head_colours(count: int) -> dict[str, list[str]]:
    """Returns colours for `count` heads, `{"light": [hex, ...], "dark": [hex, ...]}`.

    Hues step by the golden angle, so no hue repeats and neighbours are far apart. Lightness cycles.
    """
    return {
        theme: [oklch_to_hex(levels[i % len(levels)], _CHROMA, (250.0 + i * _GOLDEN) % 360.0) for i in range(count)]
        for theme, levels in (_FEW if count <= 21 else _MANY).items()
    }


def oklch_to_hex(lightness: float, chroma: float, hue: float) -> str:
    """Converts an OKLCH colour to `#rrggbb`, reducing its chroma to fit sRGB (Ottosson 2020, "Oklab")."""
    while True:
        rgb = _oklab_to_linear(lightness, chroma * cos(radians(hue)), chroma * sin(radians(hue)))
        if all(-1e-4 <= channel <= 1.0 + 1e-4 for channel in rgb) or chroma <= 0.0:
            return "#" + "".join(f"{round(255 * _gamma(min(max(channel, 0.0), 1.0))):02x}" for channel in rgb)
        chroma -= 0.005


def _oklab_to_linear(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _gamma(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


def ramp(colours: Ramp, position: float) -> tuple[int, int, int]:
    """Interpolates red, green and blue linearly at `position` along `colours`; `position` is clamped to 0..1."""
    at = min(max(position, 0.0), 1.0) * (len(colours) - 1)
    low = min(int(at), len(colours) - 2)
    start, end = channels(colours[low]), channels(colours[low + 1])
    red, green, blue = (round(s + (e - s) * (at - low)) for s, e in zip(start, end, strict=True))
    return red, green, blue


def channels(colour: str) -> tuple[int, int, int]:
    """Converts `#rrggbb` to three integers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
