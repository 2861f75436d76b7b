"""Doing harm, and undoing it: faults of nodes and lines, and the journal by which all of it can be undone."""
