"""The server's side of a client connection. This is the only package that relies on private parts of uvicorn.

`tests/unit/test_api_edge.py` names each of these parts, so that a version of uvicorn that changes one is noticed.
"""
