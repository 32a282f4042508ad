"""What operators are told of each trouble: it is made on real servers, and every surface is compared with the table in
`docs/generate/troubles.py`.
"""
