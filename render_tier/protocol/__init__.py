"""Message types, one file per hop. Reading this package tells the architecture; it imports nothing of
the rest.
"""
