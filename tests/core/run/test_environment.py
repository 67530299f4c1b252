"""The packages that a run's environment lists."""

import sys

from plugrl.core.run.records.environment import describe_environment


def test_packages_are_read_in_every_form_of_installation(tmp_path, monkeypatch):
    def write(path, text):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)

    # A description may hold lines that look like headers, and so may a package without a name.
    wheel = "Metadata-Version: 2.1\nName: Wheel_x\nVersion: 1.2\n\nName: other\nVersion: 9\n"
    write("wheel_x-1.2.dist-info/METADATA", wheel)
    write("develop.egg-info/PKG-INFO", "Name: develop\nVersion: 0.1.dev3\n")
    write("old-2.0.egg-info", "Version: 2.0\nName: old\n")
    write("nameless-3.0.dist-info/METADATA", "Version: 3.0\n\nName: none\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    packages = describe_environment()["packages"]
    assert packages == {"develop": "0.1.dev3", "old": "2.0", "Wheel_x": "1.2"}
    assert list(packages) == ["develop", "old", "Wheel_x"]
