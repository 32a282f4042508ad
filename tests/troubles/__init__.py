"""What operators are told of each trouble: it is made on real servers, and every surface is read.

`python -m tests.troubles` writes what all surfaces say into a file, so that two versions can be compared.
"""
