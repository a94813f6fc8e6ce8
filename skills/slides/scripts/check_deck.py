"""check_deck.py DECK.pptx: shapes outside the slide, shapes on top of each other, empty placeholders."""

import sys

try:
    from pptx import Presentation
except ImportError:
    print("python-pptx is missing here. Get it with: pip install python-pptx", file=sys.stderr)
    sys.exit(3)


def box(shape):
    return shape.left, shape.top, shape.left + shape.width, shape.top + shape.height


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def problems(path):
    deck = Presentation(path)
    found = []
    for number, slide in enumerate(deck.slides, start=1):
        placed = [s for s in slide.shapes if s.width and s.height and s.left is not None]
        for shape in placed:
            left, top, right, bottom = box(shape)
            if left < 0 or top < 0 or right > deck.slide_width or bottom > deck.slide_height:
                found.append("slide %d: %s is outside the slide" % (number, shape.name))
            if shape.is_placeholder and shape.has_text_frame and not shape.text_frame.text.strip():
                found.append("slide %d: %s is empty" % (number, shape.name))
        for index, shape in enumerate(placed):
            for other in placed[index + 1 :]:
                if overlap(box(shape), box(other)):
                    found.append("slide %d: %s and %s overlap" % (number, shape.name, other.name))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    listed = problems(sys.argv[1])
    print("\n".join(listed) or "nothing found")
    sys.exit(1 if listed else 0)
