"""Other tools' files as journals of ours: what can be known, how exactly, and what was repaired."""

from branchkit.imports.api import CallSummary as CallSummary
from branchkit.imports.api import Imported as Imported
from branchkit.imports.api import import_file as import_file
from branchkit.imports.api import refused_json as refused_json
from branchkit.imports.api import sniff as sniff
from branchkit.imports.detect import FORMATS as FORMATS
