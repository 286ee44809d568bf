"""The chat templates that models were published with, as Python packages carry them: files, and texts within sources.

The packages are those of requirements/templates.txt and templates_source.txt in .venv-templates, and transformers. None is
imported; the texts are read from Python sources by `ast`, and from one C++ source as its literals.
"""

import ast
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import transformers
from conftest import ROOT

PACKAGES = ROOT / ".venv-templates/lib/python3*/site-packages"
SOURCES = ROOT / ".venv-templates/sources"
TRANSFORMERS = Path(transformers.__file__).parent

# (what names begin with, folder of *.jinja files)
FOLDERS = [
    ("llama.cpp", SOURCES / "vendor/llama.cpp/models/templates"),
    ("trl", PACKAGES / "trl/chat_templates"),
    ("axolotl", PACKAGES / "axolotl/utils/chat_templates/templates"),
]
# (what names begin with, Python source whose constants are templates)
MODULES = [
    ("unsloth", PACKAGES / "unsloth/chat_templates.py"),
    ("llama-cpp-python", SOURCES / "llama_cpp/llama_chat_format.py"),
    ("transformers", TRANSFORMERS / "models/llama4/processing_llama4.py"),
    ("transformers", TRANSFORMERS / "models/qwen2_audio/processing_qwen2_audio.py"),
    ("transformers", TRANSFORMERS / "models/smolvlm/processing_smolvlm.py"),
]
CASES_OF_CPP = SOURCES / "vendor/llama.cpp/tests/test-chat-template.cpp"

NOW = datetime(2031, 2, 3, 4, 5, 6)  # what the tests' templates have as the time
NOW_SECONDS = int(NOW.replace(tzinfo=timezone.utc).timestamp())


class FrozenTime(datetime):
    """For transformers' datetime."""

    @classmethod
    def now(cls, tz=None):
        return NOW


@dataclass
class ChatTemplate:
    name: str  # "llama.cpp/GLM-4.6": of the first place that has the text
    file: str  # within its package
    text: str
    also: list[str] = field(default_factory=list)  # its names elsewhere

    @property
    def marks_replies(self):
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.text) is not None


def resolved(path):
    """The path with the version of Python in place of its *."""
    found = list(Path("/").glob(str(path).lstrip("/")))
    assert found, f"without {path}: run `scripts/setup.sh oracle`"
    return found[0]


def is_template(value):
    return isinstance(value, str) and "message" in value and "{%" in value and "{{" in value and len(value) > 100


def in_folder(prefix, folder):
    for path in sorted(resolved(folder).glob("*.jinja")):
        yield f"{prefix}/{path.stem}", path.name, path.read_text(encoding="utf-8")


def in_python(prefix, path):
    """The string constants that are templates, by the class that they're in, else the variable."""
    source = resolved(path)

    def visit(node, name, in_class):
        if isinstance(node, ast.Constant) and is_template(node.value):
            yield name, node.value
        if isinstance(node, ast.ClassDef):
            name, in_class = node.name, True
        elif isinstance(node, ast.Assign) and not in_class:
            name = next((one.id for one in node.targets if isinstance(one, ast.Name)), name)
        # What a call has as an argument may be a part of a template only.
        for child in [] if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            yield from visit(child, name, in_class)

    for name, text in visit(ast.parse(source.read_text(encoding="utf-8")), source.stem, False):
        yield f"{prefix}/{name}", source.name, text


def in_cpp(prefix, path):
    """The templates of llama.cpp's own test, of models older than its files."""
    literal = r'"(?:[^"\\\n]|\\.)*"'
    case = rf"/\* \.name= \*/ ({literal}),\s*(?://[^\n]*\s*)*/\* \.template_str=? \*/ (?:U8C\()?((?:{literal}\s*)+)"
    for name, text in re.findall(case, path.read_text(encoding="utf-8")):
        parts = re.findall(literal, text)
        yield f"{prefix}/{ast.literal_eval(name)}", path.name, "".join(ast.literal_eval(part) for part in parts)


def chat_templates():
    """Every text once, under the first of its names."""
    found = [one for prefix, folder in FOLDERS for one in in_folder(prefix, folder)]
    found += [one for prefix, module in MODULES for one in in_python(prefix, module)]
    found += in_cpp("llama.cpp-tests", CASES_OF_CPP)
    by_text = {}
    for name, file, text in found:
        if text in by_text:
            by_text[text].also.append(name)
        else:
            by_text[text] = ChatTemplate(name, file, text)
    names = [template.name for template in by_text.values()]
    assert len(set(names)) == len(names), "two templates have one name"
    return list(by_text.values())
