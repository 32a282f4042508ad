"""The command line of the projector, its settings, and what a command of an operator prints for programs."""

import tracemalloc
from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from devstack.programs import environment
from operate.commands.argument_types import read_key
from operate.commands.arguments import parse, parser_of
from operate.commands.operator import Operator
from projector.dead_letter import DeadLetter
from tests.harness import crm
from tests.harness.commands import call

ID = crm.LEAD
ACCEPT = ["dead-letters", "accept"]
DOCTOR = ["doctor", "--url", "https://api.example"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            ["rebuild"],
            {
                "threshold": 0,
                "allow": [],
                "max_latency": 10.0,
                "check": False,
                "promote": False,
                "force": False,
                "organization": None,
            },
            id="defaults",
        ),
        pytest.param(
            ["rebuild", "--organization", crm.ORGANIZATION.upper()],
            {"organization": crm.ORGANIZATION},
            id="an organization in upper case",
        ),
        pytest.param(["show", "lead", crm.ORGANIZATION.upper(), ID.upper()], {"id": ID}, id="an id in upper case"),
        pytest.param(
            [*ACCEPT, "--topic", "crm.leads", "--reason", "$.data.stage", "--note", "x"],
            {"records": [], "topic": "crm.leads", "reason": "$.data.stage"},
            id="what is accepted by its reason",
        ),
    ],
)
def test_words_become_arguments(words: list[str], expected: dict[str, Any]) -> None:
    assert {name: vars(parse(words))[name] for name in expected} == expected


def test_every_command_has_help_and_a_version() -> None:
    [commands] = [action.choices for action in parser_of("leadview")._actions if action.dest == "command"]
    for words in ([command, flag] for command in commands or () for flag in ("--help", "--version")):
        with pytest.raises(SystemExit) as ended:
            parse(words)
        assert ended.value.code == 0, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["run", "--processes", "0"], "write an integer from 1 to 256", id="no process"),
        pytest.param(["run", "--processes", "two"], "not a number of processes", id="processes in words"),
        pytest.param(["console", "--port", "65536"], "'65536' is not a port: write an integer from 1", id="no port"),
        *(
            pytest.param(
                [command, "--api-metrics", word], "write the address of a metrics port", id=f"{command}: {id_}"
            )
            for command in ("status", "console")
            for word, id_ in (("file:///etc/passwd", "a file"), ("127.0.0.1:9100", "no scheme"))
        ),
        pytest.param(["console", "--port", "-1"], "'-1' is not a port", id="a negative port"),
        pytest.param(["rebuild", "--lead", ID], "need their --organization", id="a lead of which organization"),
        pytest.param(["rebuild", "--contact", ID], "need their --organization", id="a contact of which organization"),
        pytest.param(
            ["rebuild", "--organization", ID, "--lead", ID, "--contact", ID], "not allowed with", id="lead and contact"
        ),
        pytest.param(["rebuild", "--organization", "x"], "'x' is not a UUID", id="not a UUID"),
        pytest.param(["show", "lead", crm.ORGANIZATION, "lv_live_x"], "show lead: error: ", id="a key in its place"),
        pytest.param(["verify", "--allow", "quote_total"], "write leads.FIELD", id="a field without its kind"),
        pytest.param(["verify", "--threshold", "few"], "invalid int value", id="no number"),
        pytest.param(["rebuild", "--max-latency", "nan"], "not a number of milliseconds", id="no number at all"),
        pytest.param(["rebuild", "--max-latency", "-5"], "not a number of milliseconds", id="a negative latency"),
        pytest.param(["drop", "two"], "invalid int value", id="no generation"),
        pytest.param(["rollback", "2"], "unrecognized arguments: 2", id="a generation that nobody chooses"),
        pytest.param(["usage"], "required: organization", id="the usage of nobody"),
        pytest.param(["validate", "--topic"], "--topic: expected one argument", id="no topic"),
        pytest.param([*ACCEPT, "crm.leads:0:7"], "required: --note", id="accepted without a note"),
        pytest.param([*ACCEPT, "crm.leads:0:7", "--note", " "], "must not be empty", id="an empty note"),
        pytest.param([*ACCEPT, "crm.leads:0:7", "--note", "x" * 201], "at most 200", id="a long note"),
        pytest.param([*ACCEPT, "--note", "x"], "name the records", id="nothing to accept"),
        pytest.param([*ACCEPT, "crm.leads:0:7", "--topic", "crm.leads", "--note", "x"], "name the", id="both ways"),
        pytest.param([*ACCEPT, "--reason", "", "--note", "x"], "must not be empty", id="an empty reason"),
        pytest.param([*ACCEPT, "crm.leads:0:9-7", "--note", "x"], "crm.leads:0:120-420", id="a range backwards"),
        pytest.param([*ACCEPT, "crm.leads:7", "--note", "x"], "write <topic>:<partition>:", id="no offset"),
        pytest.param([*ACCEPT, "crm.leads:0:1,2", "--note", "x"], "write <topic>:<partition>:", id="two at once"),
        pytest.param(["dead-letters", "show", "nonsense"], "write <topic>:<partition>:", id="no coordinates"),
        pytest.param([*DOCTOR, "--key", "lv_live_x"], "write --key -, which", id="a key"),
        pytest.param(["doctor", "--url", "https://lv_live_x@a.example"], "clients are given", id="a key in the URL"),
        pytest.param(["doctor", "--url", "ftp://api.example"], "such as https://", id="another scheme"),
        pytest.param(["doctor", "--url", "https://"], "such as https://", id="no host"),
        pytest.param(["doctor", "--url", "https://api.example:x"], "such as https://", id="no port"),
        pytest.param(["doctor", "--key", "-"], "--key needs a --url", id="a key for nothing"),
        pytest.param([*DOCTOR, "--api"], "not allowed with", id="two things at once"),
    ],
)
def test_wrong_call_exits_with_2_and_quotes_no_key(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No message quotes a key."""
    with pytest.raises(SystemExit) as ended:
        parse(words)
    error = capsys.readouterr().err
    assert (ended.value.code, said in error, "lv_live" in error) == (2, True, False)


def test_no_key_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """But Ctrl-D, which ends the input of a terminal."""

    def ended(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", ended)
    assert read_key() == ""


def test_accept_takes_records_or_all_and_a_note() -> None:
    words = ["crm.leads:0:7", "crm.leads:1:120-420"]
    arguments = parse([*ACCEPT, *words, "--note", " an import\nof 2024 "])
    assert ([*map(str, arguments.records)], arguments.note) == (words, "an import of 2024")
    assert parse([*ACCEPT, "--all", "--note", "x"]).records == []


@pytest.mark.parametrize(
    ("words", "settings", "named"),
    [
        *(
            pytest.param("status", settings, named, id=name)
            for settings, named, name in (
                ({"kafka_bootstrap_servers": "a:b"}, "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS='a:b'", "a broker"),
                ({"kafka_ssl_ca_file": "/nothing"}, "LEADVIEW_KAFKA_SSL_CA_FILE='/nothing'", "CA of Kafka"),
                ({"redis_tls_ca_file": "/nothing"}, "LEADVIEW_REDIS_TLS_CA_FILE='/nothing'", "CA of Redis"),
                (
                    {"kafka_security_protocol": "SASL_SSL"},
                    "LEADVIEW_KAFKA_SECURITY_PROTOCOL=SASL_SSL needs LEADVIEW_KAFKA_SASL_USERNAME",
                    "no user",
                ),
                (
                    {"log_level": "loud"},
                    "LEADVIEW_LOG_LEVEL='loud' is not valid: write one of debug, info, warning, error",
                    "none of several",
                ),
            )
        ),
        *(
            pytest.param(
                words,
                {"key_rate_limit": "many", "redis_url": "redis://127.0.0.1:1"},
                "LEADVIEW_KEY_RATE_LIMIT='many' is not valid: write a rate limit as requests/time",
                id=f"one of the API, by a command that reads it: {words}",
            )
            for words in ("doctor --api", f"show organization {crm.ORGANIZATION}")
        ),
    ],
)
def test_setting_that_cannot_work_is_named(words: str, settings: dict[str, str], named: str) -> None:
    """Nothing is asked from Redis before."""
    done = call(*words.split(), environment=environment(**settings))
    assert (done.status, done.stdout, done.stderr.startswith(named)) == (2, "", True), done.output


LONG = "[bold]a reason[/] " * 20


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param([], [], id="an empty list"),
        pytest.param({"reason": LONG, "share": 0.5}, {"reason": LONG, "share": 0.5}, id="builtin types"),
        pytest.param(
            [DeadLetter("crm.leads", 0, 7, "key", LONG, 1)],
            [
                {"topic": "crm.leads", "partition": 0, "offset": 7, "key": "key", "reason": LONG, "time": 1}
                | {"accepted": False, "note": "", "accepted_at": None, "offsets": 1, "version": None, "fault": None}
            ],
            id="Structs",
        ),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_json_is_valid_in_any_terminal(value: Any, expected: Any, terminal: bool) -> None:
    """Lines are not wrapped, markup is not interpreted, and nothing is colored."""
    output = StringIO()
    console = Console(file=output, width=20, force_terminal=terminal, highlight=False, soft_wrap=True)
    Operator(None, None, console, json=True).print_json(value)  # type: ignore[arg-type]  # prints only
    assert orjson.loads(output.getvalue()) == expected
    assert output.getvalue() == orjson.dumps(expected, option=orjson.OPT_INDENT_2).decode() + "\n"


def test_json_of_very_many_needs_little_more_memory_than_its_text() -> None:
    output = StringIO()
    operator = Operator(None, None, Console(file=output), json=True)  # type: ignore[arg-type]  # prints only
    value = [{"topic": "crm.leads", "offset": number} for number in range(20_000)]
    tracemalloc.start()
    try:
        operator.print_json(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(output.getvalue())
