"""Settings: default, then file, then variable, then flag; each value with its origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.cli.settings import effective, policy_settings
from ones.config import (
    FILE_NAME,
    SECTIONS,
    ServiceSettings,
    SimSettings,
    convert,
    load,
    settings_in,
)
from ones.control import service_process
from ones.control.statedir import StateDir
from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError


def put(directory: Path, text: str, name: str = FILE_NAME) -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the settings of the user that runs the tests."""
    monkeypatch.chdir(tmp_path)
    for field in SimSettings.__slots__:
        monkeypatch.delenv(f"ONES_SIM_{field.upper()}", raising=False)
    monkeypatch.delenv("ONES_CONFIG", raising=False)


def test_with_nothing_said_the_defaults_hold(tmp_path: Path) -> None:
    found = load({}, tmp_path)
    assert found.settings.sim == SimSettings()
    assert found.settings.policy == {}
    assert set(found.origins.values()) == {"default"}
    assert set(found.origins) == {
        f"{section}.{name}" for section in SECTIONS for name in settings_in(section)
    }
    own = {
        "service": set(ServiceSettings.__slots__) - {"launchers"},
        "sim": set(SimSettings.__slots__),
    }
    for section, names in own.items():
        assert names <= set(settings_in(section))


def test_the_last_word_wins_and_every_value_says_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "[sim]\ngpus = 8\njobs = 9\nseed = 10\n")
    monkeypatch.setenv("ONES_SIM_JOBS", "90")
    monkeypatch.setenv("ONES_SIM_SEED", "100")
    found = effective(seed=1000, policy=None)
    sim = found.settings.sim
    assert (sim.policy, sim.gpus, sim.jobs, sim.seed) == ("ones", 8, 90, 1000)
    assert found.origins["sim.policy"] == "default"
    assert found.origins["sim.gpus"] == "ones.toml"
    assert found.origins["sim.jobs"] == "ONES_SIM_JOBS"
    assert found.origins["sim.seed"] == "--seed"


def test_a_flag_is_named_as_it_is_typed() -> None:
    assert effective(gpus_per_node=2).origins["sim.gpus_per_node"] == "--gpus-per-node"


def test_a_variable_can_name_the_file(tmp_path: Path) -> None:
    other = put(tmp_path, "[sim]\ngpus = 5\n", "lab.toml")
    put(tmp_path, "[sim]\ngpus = 6\n")
    found = load({"ONES_CONFIG": str(other)}, tmp_path)
    assert found.settings.sim.gpus == 5
    assert found.origins["sim.gpus"] == "lab.toml"
    assert load({"ONES_CONFIG": ""}, tmp_path).settings.sim.gpus == 6


def test_settings_of_policies_are_read_and_checked(tmp_path: Path) -> None:
    put(tmp_path, "[policy.fifo]\nbackfill = true\n[policy.equi]\nquantum = 60\n")
    found = load({}, tmp_path)
    assert found.settings.policy == {"fifo": {"backfill": True}, "equi": {"quantum": 60.0}}
    assert found.origins["policy.fifo.backfill"] == "ones.toml"
    assert policy_settings(found, "fifo", []) == {"backfill": True}
    assert policy_settings(found, "fifo", ["backfill=false"]) == {"backfill": False}
    assert policy_settings(found, "equi", ["batch_growth = 4"]) == {
        "quantum": 60.0,
        "batch_growth": 4.0,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sim]\ngpus = 'many'", "sim.gpus: 'many' is not a whole number"),
        ("[sim]\ngpus = 1.5", "sim.gpus: 1.5 is not a whole number"),
        ("[sim]\ngpus = true", "sim.gpus: True is not a whole number"),
        ("[sim]\ngap = 'long'", "sim.gap: 'long' is not a number"),
        ("[sim]\ngap = nan", "sim.gap: nan is not a number"),
        ("[sim]\npolicy = 1", "sim.policy: 1 is not a text"),
        ("[sim]\ngpu = 1", "sim.gpu: unknown setting 'gpu'; did you mean 'gpus'?"),
        ("[simm]\ngpus = 1", "simm: unknown section 'simm'; did you mean 'sim'?"),
        ("[x]\n", "x: unknown section 'x'; known: launcher, policy, service, sim"),
        ("sim = 1", "sim: 1 is not a section"),
        ("[policy]\nfifo = 1", "policy.fifo: 1 is not a section"),
        ("[policy.fifoo]\n", "policy.fifoo: unknown policy 'fifoo'; did you mean 'fifo'?"),
        (
            "[policy.fifo]\nbackfil = true",
            "policy.fifo: unknown setting of policy fifo 'backfil'; did you mean 'backfill'?",
        ),
        ("[policy.fifo]\nbackfill = 1", "policy.fifo: backfill: 1 is not true or false"),
        ("[policy.equi]\nquantum = '1m'", "policy.equi: quantum: '1m' is not a number"),
        ("[launcher]\nray = 1", "launcher.ray: 1 is not a section"),
        ("[launcher.rays]\n", "launcher.rays: unknown launcher 'rays'; did you mean 'ray'?"),
        (
            "[launcher.ray]\nadress = 'h:1'",
            "launcher.ray: unknown setting of launcher ray 'adress'; did you mean 'address'?",
        ),
        ("[launcher.ray]\nper_node = 'x'", "launcher.ray: per_node: 'x' is not a whole number"),
        ("[service]\nray_per_node = 'x'", "service.ray_per_node: 'x' is not a whole number"),
        (
            "[service]\nlaunchers = 1",
            "service.launchers: unknown setting 'launchers'; did you mean",
        ),
        ("gpus", "is not TOML: Expected '=' after a key in a key/value pair"),
    ],
)
def test_a_wrong_file_is_refused_by_file_key_and_value(
    tmp_path: Path, text: str, message: str
) -> None:
    path = put(tmp_path, text)
    with pytest.raises(InvalidFileError) as caught:
        load({}, tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"no\.toml: cannot be read: No such file"):
        load({"ONES_CONFIG": str(tmp_path / "no.toml")}, tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFileError, match=r"ones\.toml: is not TOML"):
        load({}, tmp_path)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ONES_SIM_GPUS", "many", "ONES_SIM_GPUS: 'many' is not a whole number"),
        ("ONES_SIM_GPUS", "", "ONES_SIM_GPUS: '' is not a whole number"),
        ("ONES_SIM_GAP", "inf", "ONES_SIM_GAP: 'inf' is not a number"),
    ],
)
def test_a_wrong_variable_is_refused_by_name_and_value(
    tmp_path: Path, variable: str, text: str, message: str
) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        load({variable: text}, tmp_path)
    assert str(caught.value) == message


def test_a_slip_of_the_pen_in_a_variable_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ONES_SIM_GPUS'"):
        load({"ONES_SIM_GPU": "4"}, tmp_path)
    with pytest.raises(UnknownNameError, match="unknown variable 'ONES_SIM_ZZ'"):
        load({"ONES_SIM_ZZ": "4"}, tmp_path)


@pytest.mark.parametrize(
    "variable", ["ONES_ALL", "ONES_TRACEBACK", "ONES_AND_ZEROS", "ONESELF", "HOME", "SIM_GPUS"]
)
def test_variables_of_others_are_left_alone(tmp_path: Path, variable: str) -> None:
    assert load({variable: "x"}, tmp_path) == load({}, tmp_path)


@pytest.mark.parametrize("pair", ["backfill", "=true", " =true", ""])
def test_a_setting_that_is_no_pair_is_refused(tmp_path: Path, pair: str) -> None:
    with pytest.raises(InvalidSettingError, match="is not KEY=VALUE"):
        policy_settings(load({}, tmp_path), "fifo", [pair])


@pytest.mark.parametrize("key", ["seed", "name", "self"])
def test_what_is_no_setting_of_the_policy_cannot_be_set(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown setting of policy fifo '{key}'"):
        policy_settings(load({}, tmp_path), "fifo", [f"{key}=1"])


@pytest.mark.parametrize(
    ("value", "kind", "made"),
    [
        ("7", "int", 7),
        (7, "int", 7),
        ("7", "float", 7.0),
        (7, "float", 7.0),
        ("1e3", "float", 1000.0),
        ("false", "bool", False),
        (True, "bool", True),
        ("7", "str", "7"),
        ("7", "int | None", 7),
        ([1], "list[int]", [1]),  # of a stranger's policy: its own affair
    ],
)
def test_a_value_gets_the_type_of_its_setting(value: object, kind: str, made: object) -> None:
    found = convert(value, kind)
    assert found == made
    assert type(found) is type(made)


def test_the_service_has_a_section_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, "[service]\nslots = 4\nport = 9000\n")
    found = load({"ONES_SERVICE_PORT": "9001"}, tmp_path)
    assert (found.settings.service.slots, found.settings.service.port) == (4, 9001)
    assert found.origins["service.slots"] == "ones.toml"
    assert found.origins["service.port"] == "ONES_SERVICE_PORT"
    flagged = effective(section="service", port=9002)
    assert flagged.settings.service.port == 9002
    assert flagged.origins["service.port"] == "--port"
    with pytest.raises(UnknownNameError, match="ONES_SERVICE_SLOT'; did you mean"):
        load({"ONES_SERVICE_SLOT": "4"}, tmp_path)


#: documented names; the fields of the launchers' settings are behind them
OF_LAUNCHERS = {
    "ray_address": ("ray", "address", "h:1"),
    "ray_slots": ("ray", "slots", "ones"),
    "ray_per_node": ("ray", "per_node", 3),
    "ray_token": ("ray", "token", "/t"),
    "ray_tls_certificate": ("ray", "tls_certificate", "/c"),
    "ray_tls_key": ("ray", "tls_key", "/k"),
    "ray_tls_ca": ("ray", "tls_ca", "/a"),
    "node_dir": ("ray", "node_dir", "/nodes"),
    "lease_seconds": ("ray", "lease_seconds", 9.0),
    "slurm_lead": ("slurm", "lead", 60.0),
}


@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_settings_of_launchers_are_in_the_section_of_the_service(name: str, tmp_path: Path) -> None:
    launcher, field, value = OF_LAUNCHERS[name]
    put(tmp_path, f"[service]\n{name} = {value!r}\n")
    found = load({}, tmp_path)
    assert found.settings.service.launchers == {launcher: {field: value}}
    assert found.origins[f"service.{name}"] == "ones.toml"
    variable = f"ONES_SERVICE_{name.upper()}"
    found = load({variable: str(value)}, tmp_path / "elsewhere")
    assert found.settings.service.launchers == {launcher: {field: value}}
    assert found.origins[f"service.{name}"] == variable
    put(tmp_path, f"[launcher.{launcher}]\n{field} = {value!r}\n")
    found = load({}, tmp_path)
    assert found.settings.service.launchers == {launcher: {field: value}}
    assert found.origins[f"service.{name}"] == "ones.toml"


def test_a_launcher_in_a_file_has_a_section_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from ones.launchers.local import LocalLauncher\n"
        "class Mine(LocalLauncher):\n"
        "    @dataclass\n"
        "    class Settings:\n"
        "        level: int = 1\n"
    )
    put(tmp_path, '[launcher."mine.py"]\nlevel = 2\n')
    found = load({}, tmp_path)
    assert found.settings.service.launchers == {"mine.py": {"level": 2}}
    assert found.origins["launcher.mine.py.level"] == "ones.toml"
    rooted = found.settings.service.rooted()
    assert rooted.launchers == {str(tmp_path / "mine.py"): {"level": 2}}


def test_paths_of_the_service_are_told_from_where_the_user_is(tmp_path: Path) -> None:
    given = ServiceSettings(
        state="mine",
        tls_certificate="../cert.pem",
        tls_key="/etc/key.pem",
        checkpoints="s3://there",
    )
    found = given.rooted()
    assert found.state == str(tmp_path / "mine")
    assert Path(found.tls_certificate).resolve() == tmp_path.parent / "cert.pem"
    assert (found.tls_key, found.checkpoints) == ("/etc/key.pem", "s3://there")


def test_paths_of_launchers_are_told_from_where_the_user_is(tmp_path: Path) -> None:
    ray = {"token": "token", "tls_ca": "", "address": "h:1"}
    given = ServiceSettings(launcher="mine.py", launchers={"ray": ray})
    found = given.rooted()
    assert found.launcher == str(tmp_path / "mine.py")
    assert found.launchers == {"ray": {**ray, "token": str(tmp_path / "token")}}


def test_a_service_in_a_relative_directory_starts_there(tmp_path: Path) -> None:
    settings = ServiceSettings(state="mine", slots=1, port=0, policy="fifo")
    reached = service_process.start(settings, {})
    try:
        assert (tmp_path / "mine" / "ones.db").exists()
    finally:
        service_process.kill(StateDir(tmp_path / "mine"))
    assert reached.url.startswith("http://")
