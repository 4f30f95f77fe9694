"""The file of a mirror's connection, and what the command refuses before it connects."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.mirror.client_config import read_client_config


def test_properties_of_java_and_librdkafka(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\n\nsecurity.protocol = SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        'sasl.jaas.config=org.x.ScramLoginModule required username="ann" password="a=b";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\nssl.endpoint.identification.algorithm=\n"
        "request.timeout.ms=5000\n"
    )
    assert read_client_config(file) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "a=b",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("auto.offset.reset=earliest", ErrorCode.REPLOG_UNKNOWN_OPTION),
        ("no separator", ErrorCode.REPLOG_INVALID_OPTION),
        ("request.timeout.ms=soon", ErrorCode.REPLOG_INVALID_OPTION),
        (None, ErrorCode.REPLOG_INVALID_OPTION),
    ],
)
def test_what_is_no_setting_is_refused(tmp_path, text, code):
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        read_client_config(file)
    assert caught.value.code is code
