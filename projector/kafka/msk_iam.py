"""Tokens for Amazon MSK with IAM: `LEADVIEW_KAFKA_OAUTH_TOKEN_PROVIDER=projector.kafka.msk_iam:token`.

It needs the extra `leadview[msk]`, the region in `AWS_REGION`, and credentials of AWS, which its library finds as every
AWS library does.
"""

import os

try:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
except ImportError as error:
    raise ImportError(f"{error}: install leadview[msk]") from error


def token() -> tuple[str, float]:
    """Returns a token, and when it expires, in seconds since 1970."""
    text, expires_ms = MSKAuthTokenProvider.generate_auth_token(os.environ["AWS_REGION"])
    return text, expires_ms / 1000
