from xml.etree import ElementTree

from polyrhythm.report.tradeoff_svg import GOOD, OTHER, Point, tradeoff_svg

POINTS = [Point(5.0, 0.99, "3, 3", False), Point(2.0, 0.5, "0, 1", True)]


def test_a_setting_is_a_circle_or_a_square_coloured_by_success() -> None:
    root = ElementTree.fromstring(tradeoff_svg([("a < b", POINTS)]))
    tag = "{http://www.w3.org/2000/svg}"
    circle, square = root.find(f"{tag}circle"), root.find(f"{tag}rect")
    assert circle is not None
    assert square is not None
    assert (circle.get("fill"), square.get("fill")) == (GOOD, OTHER)
    assert float(str(circle.get("cx"))) > float(str(square.get("x")))
    assert float(str(circle.get("cy"))) < float(str(square.get("y")))
    assert "a < b" in {element.text for element in root.iter(f"{tag}text")}
