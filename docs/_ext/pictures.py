"""Dark versions of pictures: a page that shows `x.png` also gets `x.dark.png`, if that file exists.

The theme shows one of the two, and follows its own switch between light and dark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform


class DarkPictures(SphinxTransform):
    default_priority = 200  # before Sphinx collects the images

    def apply(self, **_: Any) -> None:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            uri = Path(image["uri"])
            dark = uri.with_suffix(f".dark{uri.suffix}")
            if "://" in image["uri"] or not (folder / dark).is_file():
                continue
            twin = image.deepcopy()
            twin["uri"] = dark.as_posix()
            image["classes"].append("only-light")
            twin["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, twin)


def setup(app: Any) -> dict[str, Any]:
    app.add_transform(DarkPictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
