"""Settings of the built pages: sphinx-build -W --keep-going docs docs/_build/html

Neither the build nor the pages need a network: no web fonts, no scripts of other hosts.
"""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
os.environ.setdefault("CUDAKIT_DEVICE", "sim")

import cudakit  # noqa: E402

project = "cudakit"
version = release = cudakit.__version__
copyright = "the cudakit authors, Apache-2.0"
language = "en"

# Without myst-nb, the pages are built without the notebook.
with_notebook = importlib.util.find_spec("myst_nb") is not None
markdown = "myst_nb" if with_notebook else "myst_parser"
extensions = [
    markdown,
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docstrings",
    "repository",
    "commandline",
    "units",
    "pictures",
]
exclude_patterns = ["_build"] if with_notebook else ["_build", "notebook.ipynb"]
source_suffix = (
    {".md": "myst-nb", ".ipynb": "myst-nb"} if with_notebook else {".md": "markdown"}
)
suppress_warnings = (
    [] if with_notebook else ["toc.excluded", "toc.not_readable", "myst.xref_missing"]
)

# The notebook is shown with its committed outputs; a test compares them with a new run.
nb_execution_mode = "off"
nb_render_error_lexer = "text"  # reports of faults are not IPython tracebacks

# Headings have the same anchors as on GitHub.
myst_heading_anchors = 4
# GitHub does not render MyST's extensions of Markdown, so the pages do not use them.
myst_enable_extensions: list[str] = []

# Objects that a device, a module or a stream returns, shown without constructors.
docstrings_not_constructed = [
    "AccuracyReport", "Compiled", "Context", "Declared", "DeviceArray", "Event",
    "Executable", "Graph", "Kernel", "LaunchReport", "LaunchShape", "LineAccuracy",
    "Module", "Node", "Place", "Prepared", "Rates", "Read", "RecordedLaunch",
    "Recording", "Report", "Resources", "Row", "ShippedKernels", "Stream", "Subject",
    "TileKernel", "Times", "Trace", "TritonKernel", "Tuning", "TuningReport", "Verdict",
    "WatchedParameter", "Write", "WriteHistory",
]  # fmt: skip

# Without torch, the page of cudakit.torch is built with a mock.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autoclass_content = "class"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

# The copy button copies code, and only the commands of a console block.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"

html_theme = "furo"
html_title = "cudakit"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
