"""The page of a comparison: tables and figures, as HTML, Markdown and LaTeX."""
