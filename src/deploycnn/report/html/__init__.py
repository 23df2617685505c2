"""`report.html`: one file that opens offline. Python draws the charts and words the numbers, a Jinja template lays them
out, a small script sorts, filters and shows tooltips; without the script everything can still be read.
"""

from deploycnn.report.html.page import Part, render_page

__all__ = ["Part", "render_page"]
