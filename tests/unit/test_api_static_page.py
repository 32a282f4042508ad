"""The choice of a representation by `Accept-Encoding`."""

import pytest

from api.pages import prefers_gzip


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        pytest.param("", False, id="nothing"),
        pytest.param("gzip", True, id="gzip"),
        pytest.param("x-gzip", True, id="its old name"),
        pytest.param("GZip", True, id="any case"),
        pytest.param("gzip, deflate, br, zstd", True, id="as a browser"),
        pytest.param("br\ngzip;q=0.5", True, id="a repeated header"),
        pytest.param("*", True, id="anything"),
        pytest.param("identity", False, id="only as it is"),
        pytest.param("br", False, id="another coding"),
        pytest.param("gzip;q=0", False, id="refused"),
        pytest.param("gzip ; q=0.000, *", False, id="refused, but anything else"),
        pytest.param("*;q=0", False, id="nothing else"),
        pytest.param("gzip;q=0.5, identity", False, id="rather as it is"),
        pytest.param("gzip;q=0.5, identity;q=0.4", True, id="rather compressed"),
        pytest.param("gzip;q=high", False, id="cannot be read"),
        pytest.param("gzip;q=2", False, id="a weight that does not exist"),
    ],
)
def test_the_representation_that_a_client_prefers(accepted: str, expected: bool) -> None:
    assert prefers_gzip(accepted) is expected
