"""The modules that carry promises, and the tests that are about them. The quick ones come first, because the first
failure ends a run.
"""

from typing import NamedTuple


class Area(NamedTuple):
    """`number` changes of the files that match `paths` are in a sample. `tests` are files in `tests`, without `test_`
    and `.py`."""

    name: str
    number: int
    paths: tuple[str, ...]
    tests: tuple[str, ...]
    chosen: str = ""
    """Which of the tests are run, as pytest's `-k` takes it."""

    @property
    def stages(self) -> list[list[str]]:
        """The files that are run together. Usually the first ones, which need no server, decide."""
        places = (name.rpartition("/") for name in self.tests)
        files = [f"tests/{folder}/test_{name}.py" for folder, _, name in places]
        unit = [file for file in files if file.startswith("tests/unit/")]
        return [stage for stage in (unit, files[len(unit) :]) if stage]


_SINGLE = "not cluster and not shards"
"""Scripts are tested on three kinds of servers; one kills as much as three."""


def _scripts(*names: str) -> tuple[str, ...]:
    return tuple(f"projector/redis/lua/{name}.lua" for name in names)


AREAS = (
    Area(
        "scripts of documents",
        28,
        _scripts(
            "contact_index",
            "heads",
            "index_repair",
            "layout",
            "leave_contact",
            "pending_leads",
            "put_contacts",
            "put_documents",
            "put_leads",
            "resplice",
            "write_each",
        ),
        ("service/lua_documents", "service/updates", "service/upkeep", "service/laws"),
        _SINGLE,
    ),
    Area(
        "scripts of access",
        14,
        _scripts(
            "delete_api_key",
            "erase",
            "expire_lock",
            "finish_work",
            "key_record",
            "may",
            "put_api_key",
            "put_organization",
            "take_lock",
        ),
        ("service/lua_access", "service/lua_documents", "service/upkeep", "service/recreated"),
        _SINGLE,
    ),
    Area(
        "scripts of the control record",
        20,
        _scripts(
            "change_control",
            "checkpoint",
            "create_copy",
            "delete_dead_letters",
            "delete_rebuild",
            "forget_writers",
            "mark_*",
            "re[ag]*",
            "replace_*",
            "rewind",
            "store_*",
        ),
        (
            "service/lua_checkpoint",
            "service/preconditions",
            "service/as_of",
            "service/control_record",
            "service/dead_letters",
            "service/slots",
        ),
        _SINGLE,
    ),
    Area(
        "scripts of the API",
        14,
        ("api/redis/lua/*.lua",),
        ("service/api_serve_lua", "service/api_limits", "service/commands", "service/api_outages"),
        _SINGLE,
    ),
    Area(
        "change, mapping",
        24,
        (
            "projector/change.py",
            "projector/interpret.py",
            "projector/mapping.py",
            "projector/offsets.py",
            "projector/record.py",
            "schemas/api_keys.py",
            "schemas/base62.py",
            "schemas/bodies.py",
            "schemas/compression.py",
            "schemas/control.py",
            "schemas/gcra.py",
            "schemas/ids.py",
            "schemas/layouts.py",
            "schemas/names.py",
        ),
        (
            "unit/mapping",
            "unit/change",
            "unit/layouts",
            "unit/api_keys",
            "unit/api_limits",
            "unit/ids",
            "unit/dead_letters",
            "unit/compression",
            "unit/control_record",
            "unit/limits",
            "unit/faults",
            "unit/resources",
            "unit/scripts",
            "unit/versions",
            "unit/batch",
            "service/lua_documents",
            "service/lua_access",
        ),
        _SINGLE,
    ),
    Area(
        "calls, applier",
        14,
        ("projector/redis/[!_r]*.py",),
        (
            "unit/batch",
            "unit/compression",
            "unit/scripts",
            "service/lua_checkpoint",
            "service/lua_documents",
            "service/lua_access",
            "service/updates",
            "service/redis_faults",
            "service/redis_sentinel",
            "service/preconditions",
            "service/redis_cluster",
        ),
    ),
    Area(
        "connections to Redis",
        20,
        ("runtime/redis/connection.py", "runtime/redis/routing.py", "runtime/redis/errors.py"),
        (
            "unit/settings",
            "service/api_connection",
            "service/api_outages",
            "service/redis_faults",
            "service/redis_cluster",
        ),
    ),
    Area(
        "requests",
        20,
        (
            "api/documents.py",
            "api/errors.py",
            "api/keys.py",
            "api/limits.py",
            "api/request.py",
            "api/usage.py",
        ),
        (
            "unit/api_request",
            "unit/api_limits",
            "unit/api_bounds",
            "service/api_requests",
            "service/api_edge",
            "service/api_limits",
            "service/hostile_http/api_hostile_http",
            "service/api_outages",
            "service/api_process",
        ),
    ),
    Area(
        "the API's way into Redis",
        20,
        (
            "api/redis/fair_queue.py",
            "api/redis/link.py",
            "api/redis/links.py",
            "api/redis/serving.py",
            "api/redis/store.py",
        ),
        (
            "unit/api_bounds",
            "service/api_serving",
            "service/api_large",
            "service/api_connection",
            "service/redis_faults",
            "service/api_outages",
            "service/redis_cluster",
            "service/slots",
        ),
    ),
    Area(
        "edge",
        16,
        ("api/edge.py",),
        (
            "unit/api_request",
            "service/api_edge",
            "service/hostile_http/api_hostile_http",
            "service/hostile_http/api_greedy",
        ),
    ),
    Area(
        "line",
        24,
        ("projector/line/[!m]*.py",),
        (
            "unit/batch",
            "unit/observations",
            "unit/rebuild",
            "service/line",
            "service/updates",
            "service/catching_up",
            "service/source",
        ),
    ),
    Area(
        "ledger",
        18,
        ("projector/ledger/[!h]*.py",),
        (
            "unit/control_record",
            "service/line",
            "service/lua_checkpoint",
            "service/preconditions",
            "service/control_record",
            "service/slots",
        ),
    ),
    Area(
        "rebuild",
        10,
        ("operate/rebuild/*.py",),
        (
            "unit/control_record",
            "unit/rebuild",
            "service/control_record",
            "service/preconditions",
            "service/rebuild",
            "service/rebuilt",
        ),
    ),
    Area(
        "upkeep",
        12,
        ("projector/upkeep/*.py",),
        (
            "unit/batch",
            "unit/dead_letters",
            "service/dead_letters",
            "service/upkeep",
            "service/recreated",
            "service/as_of",
            "service/comparison",
            "service/control_record",
        ),
    ),
    Area(
        "accepted",
        8,
        ("projector/kafka/accepted.py",),
        ("unit/dead_letters", "unit/batch", "service/dead_letters"),
    ),
    Area(
        "verify, health",
        12,
        (
            "projector/liveness.py",
            "projector/health/observe.py",
            "projector/health/judge.py",
            "projector/verify/[!_]*.py",
            "operate/verify/[!_]*.py",
        ),
        (
            "unit/rebuild",
            "unit/problems",
            "unit/observations",
            "service/comparison",
            "service/verify",
            "service/rebuilt",
            "service/rebuild",
        ),
    ),
)
