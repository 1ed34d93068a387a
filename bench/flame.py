"""Draw flame graphs as SVG: stacks of calls, each as wide as the time spent in it."""

from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 1_200
_ROW_HEIGHT: Final = 18
_LETTER_WIDTH: Final = 6.6
_MIN_WIDTH: Final = 0.4
_MARGIN: Final = 10


@dataclass
class Node:
    """A call in the graph: its name, its colour, and the number of samples that contain it."""

    name: str
    colour: str
    count: int = 0
    children: dict[str, "Node"] = field(default_factory=dict)

    def add(self, calls: list[tuple[str, str]], count: int) -> None:
        """Count *count* samples of *calls* below this node; each call is a name and a colour, the leaf last."""
        node = self
        node.count += count
        for name, colour in calls:
            node = node.children.setdefault(name, Node(name, colour))
            node.count += count

    @property
    def depth(self) -> int:
        return 1 + max((child.depth for child in self.children.values()), default=0)


def svg(root: Node, title: str, unit: str, whole: float, legend: dict[str, str]) -> str:
    """Return the SVG of *root*, whose width represents *whole* in *unit*; *legend* maps names to colours."""
    height = (root.depth + 3) * _ROW_HEIGHT + 2 * _MARGIN
    box = f'viewBox="0 0 {_WIDTH + 2 * _MARGIN} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="monospace" font-size="11">',
        "<style>rect:hover { stroke: black }  text { pointer-events: none }</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 11}" font-size="14">{escape(title)}</text>',
    ]
    left = float(_MARGIN)
    for name, colour in legend.items():
        top = _MARGIN + _ROW_HEIGHT
        lines.append(f'<rect x="{left:.0f}" y="{top}" width="11" height="11" fill="{colour}"/>')
        lines.append(f'<text x="{left + 15:.0f}" y="{top + 10}">{escape(name)}</text>')
        left += 30 + _LETTER_WIDTH * len(name)
    _draw(lines, root, _MARGIN, height - _MARGIN - _ROW_HEIGHT, _WIDTH / root.count, unit, whole / root.count)
    return "\n".join([*lines, "</svg>\n"])


def _draw(lines: list[str], node: Node, left: float, top: float, scale: float, unit: str, worth: float) -> None:
    width = node.count * scale
    if width < _MIN_WIDTH:
        return
    tip = escape(f"{node.name}: {node.count * worth:.2f} {unit}")
    lines.append(
        f'<rect x="{left:.1f}" y="{top}" width="{max(width - 0.3, 0.3):.1f}" height="{_ROW_HEIGHT - 1}"'
        f' fill="{node.colour}"><title>{tip}</title></rect>'
    )
    letters = int(width / _LETTER_WIDTH) - 1
    if letters >= 3:
        text = node.name if len(node.name) <= letters else node.name[: letters - 1] + "…"
        lines.append(f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(text)}</text>')
    for child in sorted(node.children.values(), key=lambda child: -child.count):
        _draw(lines, child, left, top - _ROW_HEIGHT, scale, unit, worth)
        left += child.count * scale
