import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from plugrl.core.errors import UsageError
from plugrl.core.run.folder import find_all
from plugrl.core.run.run import Run

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs a second user, whose rights can be denied"
)


@contextlib.contextmanager
def as_nobody():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unwritable_folder_is_one_line_and_a_readable_one_is_listed(make_run):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        settings = {"runs_folder": str(root)}
        run = make_run(settings=settings)  # also imports what a run needs, as root
        run.finish("done")
        with as_nobody():
            with pytest.raises(UsageError, match="cannot make the run folder: .*not writable"):
                make_run(settings=settings)
            with pytest.raises(UsageError, match="cannot take the lock of the run: .*not writable"):
                Run.open(run.folder)
            assert [found.state for found in find_all(root)] == ["done"]
        assert [path.name for path in root.glob("*/*")] == [run.id]
        run.folder.chmod(0o700)
        with as_nobody():
            (found,) = find_all(root)
        assert found.state == "broken"
        assert found.error == "status.json cannot be read: Permission denied"
