"""A recorded reply as files that other programs open: CSV, PNG, animated GIF and WebP, and a page.

Knows traces, pictures and pages. Refuses to know Qt, models and the terminal. A value that was not
captured is empty, hatched or called so, never 0.
"""

from app.backend.trace_export.formats import FORMATS, ExportFormat, ExportOptions, export_trace
from app.backend.trace_export.writing import ExportError

__all__ = ["FORMATS", "ExportError", "ExportFormat", "ExportOptions", "export_trace"]
