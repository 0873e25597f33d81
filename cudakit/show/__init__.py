"""Tables, figures in documents, plots, annotated source."""
